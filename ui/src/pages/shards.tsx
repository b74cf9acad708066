/** The shards: what waits and runs in each, and who polls it. */

import type { JSX } from "preact";
import { allShards } from "../core/keys";
import { healthOf } from "../queue/roster";
import { lineOf } from "../queue/view";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Panel, Shown } from "../show/states";
import { count, plural } from "../show/text";

const UNIT_LEN_MAX = 2; // Beyond 256 shards, those with the same first two characters are shown as one.

interface Cell {
  waiting: number;
  running: number;
  workers: string[];
}

export function ShardsPage(): JSX.Element {
  const { queue, bucket } = useApp();
  const live = useLive(async () => {
    const { shard_prefix_len } = await queue.manifest();
    const [ready, leases] = [queue.ready(), queue.leases()];
    const [workers] = await Promise.all([queue.roster.look(), ready.advance(), leases.advance()]);
    const now = bucket.time.now();
    const unitLen = Math.min(shard_prefix_len, UNIT_LEN_MAX);
    const cells = new Map<string, Cell>(
      allShards(unitLen).map((shard) => [shard, { waiting: 0, running: 0, workers: [] }]),
    );
    for (const [shard, n] of lineOf(ready, now).byShard) cells.get(shard.slice(0, unitLen))!.waiting += n;
    for (const [shard, n] of lineOf(leases, now).byShard) cells.get(shard.slice(0, unitLen))!.running += n;
    for (const worker of workers)
      if (worker.leasing && healthOf(worker, now) !== "stale")
        for (const shard of worker.shards) cells.get(shard.slice(0, unitLen))?.workers.push(worker.worker_id);
    const leasing = workers.some((worker) => worker.leasing);
    return { cells, prefixLen: shard_prefix_len, exact: ready.complete && leases.complete, leasing };
  }, []);
  return (
    <>
      <header class="head">
        <h1>Shards</h1>
      </header>
      <Shown live={live} what="shards">
        {({ cells, prefixLen, exact, leasing }) => {
          const most = Math.max(1, ...[...cells.values()].map((cell) => cell.waiting));
          return (
            <>
              <Panel
                title={
                  prefixLen > UNIT_LEN_MAX
                    ? `${count(16 ** prefixLen)} shards, by their first two characters`
                    : plural(cells.size, "shard")
                }
                right={
                  <span class="quiet">
                    {exact ? "" : "the index has more than was listed so far; each look lists on"}
                  </span>
                }
              >
                <div class={cells.size > 16 ? "shards many" : "shards"}>
                  {[...cells].map(([shard, cell]) => (
                    <a
                      key={shard}
                      class="shard"
                      href={prefixLen > UNIT_LEN_MAX ? href(["tasks"]) : href(["tasks"], { shard })}
                      title={title(shard, cell)}
                    >
                      <b>{shard}</b>
                      <span class="bar" role="img" aria-label={`${cell.waiting} waiting`}>
                        <span
                          class="b-pending"
                          style={{ width: `${(100 * cell.waiting) / most}%`, minWidth: cell.waiting ? "2px" : "0" }}
                        />
                      </span>
                      {cells.size <= 16 && <span class="second">{count(cell.waiting)} waiting</span>}
                      {cells.size <= 16 && <span class="second">{count(cell.running)} running</span>}
                      {cells.size <= 16 && leasing && (
                        <span class="quiet wrap">{cell.workers.join(", ") || "nobody"}</span>
                      )}
                    </a>
                  ))}
                </div>
              </Panel>
              {!leasing && <p class="quiet">No worker here leases shards: every worker polls all of them.</p>}
            </>
          );
        }}
      </Shown>
    </>
  );
}

function title(shard: string, cell: Cell): string {
  return `shard ${shard}: ${cell.waiting} waiting, ${cell.running} running${cell.workers.length ? `, ${cell.workers.join(", ")}` : ""}`;
}
