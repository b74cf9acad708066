/**
 * What the overview shows, for a handful of requests: a page of each index, the roster, and what was written down of
 * pauses. Of the tasks that have ended there is no index; their keys are listed a few pages at a time and a few of them
 * read, the last changed first. What is reckoned from a part says so.
 */

import type { Desired } from "../core/desired";
import { type Group, grouped } from "../core/errors";
import type { Catalogue } from "./catalogue";
import { lookInboxes } from "./inboxes";
import { healthOf, lookDesired, type WorkerInfo } from "./roster";
import type { Summary } from "./shelf";
import { type Line, lineOf, type QueueView } from "./view";

// How many tasks are read before the first looks are shown: none, since the listings alone tell much; two
// round trips of half a dozen each, for the names of types; then all of a small queue, a fair sample of a large one.
export const FIRST_READS = [0, 12, 120];
const READS_AT_FIRST = FIRST_READS.at(-1)!;
const READS_PER_ROUND = 8;
const RECENT = 24; // Beside the sample, so that a failure of just now is seen.
const SMALL = 1000; // A queue of which all tasks are soon known; then only what changes is read.
const READS_IF_SMALL = 40;
export const HISTORY_MIN = 60;

export interface Overview {
  now: number;
  ready: Line & { exact: boolean };
  running: { count: number; exact: boolean };
  total: { count: number; exact: boolean };
  read: number; // Task objects that the counts below rest on.
  byStatus: Record<string, number>;
  byType: Map<string, Record<string, number>>;
  failures: Group<Summary>[];
  workers: WorkerInfo[];
  active: number;
  dollars: number;
  requests: number;
  completed: number;
  perMinute: number | null; // Completions, from the counters of workers while the page is open.
  desired: Desired | null;
  history: { times: number[]; changes: number[] };
}

/** `reads` bounds the task objects that are read, `pages` the requests for each listing; 0: what was listed last counts. */
export async function lookOverview(queue: QueueView, reads?: number, pages = 1): Promise<Overview> {
  const [ready, leases, tasks] = [queue.ready(), queue.leases(), queue.tasks()];
  const [workers, desired] = await Promise.all([
    pages ? queue.roster.look() : queue.roster.known(),
    lookDesired(queue.bucket).catch(() => null), // That hides no task.
    ready.advance(pages),
    leases.advance(pages),
    tasks.advance(pages),
    queue.manifest(), // Without one there is no queue here, and that says so.
  ]);
  const { shard_prefix_len: prefixLen } = await queue.manifest();
  const inboxes = await lookInboxes(queue, workers, pages);
  const few = tasks.complete && tasks.entries.size <= SMALL ? READS_IF_SMALL : READS_PER_ROUND;
  const most = reads ?? (queue.shelf.size < READS_AT_FIRST ? READS_AT_FIRST : few);
  const unread = tasks
    .recent()
    .slice(0, RECENT)
    .filter((entry) => queue.shelf.known(entry) === undefined);
  await queue.shelf.read(new Set([...unread.slice(0, Math.ceil(most / 2)), ...tasks.entries.values()]), most);
  const now = queue.bucket.time.now();
  const line = lineOf([ready, ...inboxes], now, prefixLen);
  const seen = tallied(queue, inboxes);
  const sum = (field: "dollars" | "requests" | "tasks_completed"): number =>
    workers.reduce((all, each) => all + each[field], 0);
  if (pages && (seen.read || tasks.complete))
    queue.note({
      at: now,
      waiting: seen.byStatus.pending ?? 0,
      running: seen.byStatus.running ?? 0,
      completed: sum("tasks_completed"),
    });
  return {
    now,
    ready: { ...line, exact: ready.complete },
    running: leases.size,
    total: tasks.size,
    ...seen,
    workers,
    active: workers.filter((each) => healthOf(each, now, queue.silentMaxS) === "active").length,
    dollars: sum("dollars"),
    requests: sum("requests"),
    completed: sum("tasks_completed"),
    perMinute: rateOf(queue),
    desired,
    history: changesOf(queue, now),
  };
}

/**
 * Counts. Who waits and who runs, the indexes say, as far as they were listed in full. Everything else is reckoned from
 * the first tasks in order of key: ids are random, so these are a fair sample, which the last changed would not be.
 */
function tallied(
  queue: QueueView,
  inboxes: Catalogue[],
): Pick<Overview, "read" | "byStatus" | "byType" | "failures"> {
  const byType: Overview["byType"] = new Map();
  const byStatus: Record<string, number> = {};
  const failed: Summary[] = [];
  let [read, sampling] = [0, true];
  for (const { key } of queue.tasks().entries.values()) {
    const task = queue.shelf.last(key);
    if (task === undefined) sampling = false;
    if (!task) continue;
    if (task.status === "failed") failed.push(task);
    if (!sampling) continue;
    read += 1;
    const counts = byType.get(task.task_type) ?? {};
    counts[task.status] = (counts[task.status] ?? 0) + 1;
    byType.set(task.task_type, counts);
    byStatus[task.status] = (byStatus[task.status] ?? 0) + 1;
  }
  const scale = read ? queue.tasks().size.count / read : 0;
  for (const [status, n] of Object.entries(byStatus)) byStatus[status] = Math.round(n * scale);
  const waiting = [queue.ready(), ...inboxes];
  if (waiting.every((each) => each.complete))
    byStatus.pending = waiting.reduce((all, each) => all + each.entries.size, 0);
  if (queue.leases().complete) byStatus.running = queue.leases().entries.size;
  return { read, byStatus, byType, failures: grouped(failed) };
}

/** How many tasks changed in each of the last minutes, by the dates in the listing: no object is read for it. */
function changesOf(queue: QueueView, now: number): Overview["history"] {
  const catalogue = queue.tasks();
  const last = Math.floor(now / 60);
  const changes = new Array<number>(HISTORY_MIN).fill(0);
  for (const entry of catalogue.entries.values()) {
    const place = HISTORY_MIN - 1 - (last - Math.floor(entry.modified / 60));
    if (place >= 0 && place < HISTORY_MIN) changes[place]! += 1;
  }
  const listed = catalogue.entries.size;
  const scale = catalogue.complete || !listed ? 1 : catalogue.size.count / listed;
  return {
    times: changes.map((_, n) => (last - HISTORY_MIN + 1 + n) * 60),
    changes: changes.map((n) => Math.round(n * scale)),
  };
}

/** Over the last minutes of what this page saw; workers that came and went in between do not make it negative. */
function rateOf(queue: QueueView): number | null {
  const samples = queue.samples.slice(-30);
  const spanS = samples.length < 2 ? 0 : samples.at(-1)!.at - samples[0]!.at;
  if (spanS < 10) return null;
  let done = 0;
  for (const [n, sample] of samples.entries())
    if (n) done += Math.max(0, sample.completed - samples[n - 1]!.completed);
  return (done / spanS) * 60;
}
