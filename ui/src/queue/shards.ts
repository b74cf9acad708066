/** The shards, or groups of them: what waits and runs in each, and who polls it. */

import { allShards } from "../core/keys";
import { problemOf } from "../s3/problem";
import { lookInboxes } from "./inboxes";
import { type OwnedBlock, ownedBlocks } from "./owners";
import { healthOf, type WorkerInfo } from "./roster";
import { lineOf, type QueueView } from "./view";

const DIGITS_AT_ONCE = 2; // 256 cells fill a screen. Beyond, shards with the same first characters are one cell.

const WORKERS_READ = 200; // In one look: everyone, for up to so many.

export interface Cell {
  waiting: number;
  running: number;
  workers: string[]; // Those that poll it, or some shard of the group. Whoever polls all shards is not named.
}

export interface Shards {
  cells: Map<string, Cell>; // By shard, or by the characters that the shards of a group begin with.
  prefixLen: number;
  grouped: boolean; // Whether a cell stands for several shards.
  exact: boolean; // Whether both indexes were listed to their end.
  everywhere: number; // How many workers poll all shards.
  chosen: number; // How many poll only some, because they lease them or were started with these.
  owners: OwnedBlock[]; // All shards in blocks, with their owners; empty if no worker leases shards.
  unknownOwners: string | null; // Why they could not be read.
  unread: number; // How many workers are not counted yet, because their records were not read.
}

/** `under`: only the shards that begin with these characters. */
export async function lookShards(queue: QueueView, under = ""): Promise<Shards> {
  const { shard_prefix_len: prefixLen } = await queue.manifest();
  const [ready, leases] = [queue.ready(), queue.leases()];
  const [workers] = await Promise.all([queue.roster.look(WORKERS_READ), ready.advance(), leases.advance()]);
  const waiting = [ready, ...(await lookInboxes(queue, workers))];
  const now = queue.bucket.time.now();
  const head = under.slice(0, prefixLen);
  const length = Math.min(prefixLen, head.length + DIGITS_AT_ONCE);
  const cells = new Map<string, Cell>(
    allShards(length - head.length).map((tail) => [head + tail, { waiting: 0, running: 0, workers: [] }]),
  );
  for (const [shard, n] of lineOf(waiting, now, prefixLen).byShard) {
    const cell = cells.get(shard.slice(0, length));
    if (cell) cell.waiting += n;
  }
  for (const [shard, n] of lineOf([leases], now, prefixLen).byShard) {
    const cell = cells.get(shard.slice(0, length));
    if (cell) cell.running += n;
  }
  const alive = workers.filter((each) => healthOf(each, now, queue.silentMaxS) !== "stale");
  const choosy = alive.filter((each) => !pollsAll(each));
  for (const worker of choosy)
    for (const group of new Set(worker.shards.map((shard) => shard.slice(0, length))))
      cells.get(group)?.workers.push(worker.worker_id);
  return {
    cells,
    prefixLen,
    grouped: length < prefixLen,
    exact: ready.complete && leases.complete,
    everywhere: alive.length - choosy.length,
    chosen: choosy.length,
    ...(await lookOwners(queue, prefixLen, workers, now)),
    unread: queue.roster.unread,
  };
}

/** Only where somebody leases shards, so that other queues cost no request for it. Whatever is wrong with the plan, all else is shown. */
async function lookOwners(
  queue: QueueView,
  prefixLen: number,
  workers: WorkerInfo[],
  now: number,
): Promise<Pick<Shards, "owners" | "unknownOwners">> {
  if (!workers.some((each) => each.leasing)) return { owners: [], unknownOwners: null };
  try {
    const plan = await queue.plans.look(prefixLen);
    return { owners: plan ? ownedBlocks(plan, prefixLen, workers, now) : [], unknownOwners: null };
  } catch (error) {
    return { owners: [], unknownOwners: problemOf(error).message };
  }
}

function pollsAll(worker: WorkerInfo): boolean {
  return !worker.leasing && worker.shards.length === 0;
}

/** Who polls, in a sentence. */
export function pollingText({ cells, everywhere, chosen, grouped, unread }: Shards): string {
  const all = everywhere === 1 ? "1 worker polls all shards" : `${everywhere} workers poll all shards`;
  const some = chosen === 1 ? "1 worker polls only some" : `${chosen} workers poll only some`;
  if (unread) return `${everywhere + chosen} workers were checked so far, ${unread} were not.`;
  if (!everywhere && !chosen) return "No worker is running, so no shard is polled.";
  if (!chosen) return `${all}.`;
  if (everywhere) return `${all}, ${some}.`;
  const left = [...cells].filter(([, cell]) => cell.workers.length === 0).map(([shard]) => shard);
  const named = left.slice(0, 8).join(", ") + (left.length > 8 ? ` and ${left.length - 8} more` : "");
  const what = grouped ? "no shard that begins with" : "not";
  return left.length
    ? `${some}; ${what} ${named}: tasks there are not claimed.`
    : `${some}; together they poll all.`;
}
