/**
 * Tasks by filter, last changed first, as `qo list` finds them: keys first, which the listing dates, then as many
 * objects as it takes. Active tasks are found through the index that holds them.
 */

import { seconds } from "../core/instant";
import { parseHint } from "../core/keys";
import type { Status } from "../core/task";
import type { Entry } from "../s3/replies";
import type { Catalogue } from "./catalogue";
import { listInboxes } from "./inboxes";
import type { Summary } from "./shelf";
import type { QueueView } from "./view";

export interface Filter {
  status: Status | "" | "all"; // Empty: all but archived ones.
  type: string;
  shard: string;
  sinceS: number | null; // Changed within so many seconds.
}

export interface Found {
  tasks: Summary[];
  looked: number; // Objects that were read or known among those listed.
  listed: number;
  size: { count: number; exact: boolean };
  more: boolean; // Whether some that are listed were not looked at.
  pagesLeft: number;
}

export const REACH = 150; // How many are looked at. Who wants more asks for it.
const ROUNDING_S = 2;
const BATCH = 50;

export function catalogueFor(queue: QueueView, filter: Filter): Catalogue {
  if (filter.status === "pending") return queue.ready(filter.shard);
  if (filter.status === "running") return queue.leases(filter.shard);
  return queue.tasks(filter.shard);
}

export function admits(filter: Filter, task: Summary, now: number): boolean {
  return (
    admitsStatus(filter.status, task.status) &&
    (!filter.type || task.task_type === filter.type) &&
    (filter.sinceS === null || (seconds(task.updated_at) ?? 0) >= now - filter.sinceS)
  );
}

function admitsStatus(wanted: Filter["status"], status: Status): boolean {
  if (wanted === "all") return true;
  return wanted ? status === wanted : status !== "archived";
}

/**
 * Up to `most` matching tasks among the `reach` that changed last. What is known from an earlier look is read again only
 * if it has changed, so looking again and again costs a listing and little more.
 */
export async function findTasks(queue: QueueView, filter: Filter, most: number, reach = REACH): Promise<Found> {
  const { shard_prefix_len: prefixLen } = await queue.manifest();
  const catalogue = catalogueFor(queue, filter);
  await catalogue.advance();
  const inboxes = filter.status === "pending" ? await listInboxes(queue) : [];
  const now = queue.bucket.time.now();
  const active = filter.status === "pending" || filter.status === "running";
  const oldest = filter.sinceS === null || active ? 0 : now - filter.sinceS - ROUNDING_S;
  const routed = inboxes.flatMap((each) => each.recent()).filter((entry) => within(filter.shard, entry, prefixLen));
  const entries = newestFirst(catalogue.recent(), routed).filter((entry) => entry.modified >= oldest);
  const { count, exact } = catalogue.size;
  const base = {
    listed: catalogue.entries.size + routed.length,
    size: { count: count + routed.length, exact },
    pagesLeft: catalogue.pagesLeft,
  };

  if (active) {
    const found = new Map<string, Summary>(); // By id: two hints may lead to one task.
    let looked = 0;
    while (looked < Math.min(entries.length, Math.max(reach, most)) && found.size < most) {
      const hints = entries.slice(looked, looked + BATCH);
      for (const task of await queue.shelf.led(hints, now, prefixLen))
        if (admits(filter, task, now)) found.set(task.id, task);
      looked += hints.length;
    }
    const tasks = sorted([...found.values()]).slice(0, most);
    return { ...base, tasks, looked, more: looked < entries.length };
  }

  const tasks: Summary[] = [];
  let looked = 0;
  while (looked < Math.min(entries.length, reach) && tasks.length < most) {
    const batch = entries.slice(looked, Math.min(looked + BATCH, reach));
    await queue.shelf.read(batch, batch.length);
    for (const entry of batch) {
      const task = queue.shelf.known(entry);
      if (task && admits(filter, task, now)) tasks.push(task);
    }
    looked += batch.length;
  }
  return { ...base, tasks: sorted(tasks).slice(0, most), looked, more: looked < entries.length };
}

function within(shard: string, entry: Entry, prefixLen: number): boolean {
  return parseHint(entry.key, prefixLen)?.shard.startsWith(shard) ?? false;
}

function newestFirst(one: Entry[], other: Entry[]): Entry[] {
  return other.length ? [...one, ...other].sort((a, b) => b.modified - a.modified) : one;
}

function sorted(tasks: Summary[]): Summary[] {
  return tasks.sort((a, b) => (seconds(b.updated_at) ?? 0) - (seconds(a.updated_at) ?? 0));
}
