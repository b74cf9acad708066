/** The shards: what waits and runs in each, and who polls it. */

import type { JSX } from "preact";
import { type Cell, lookShards, pollingText } from "../queue/shards";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Panel, Shown } from "../show/states";
import { count, plural } from "../show/text";
import { ShardOwners } from "./shard_owners";

export function ShardsPage({ query }: { query: Record<string, string> }): JSX.Element {
  const { queue } = useApp();
  const under = /^[0-9a-f]{1,3}$/.test(query.under ?? "") ? query.under! : "";
  const live = useLive(() => lookShards(queue, under), [under]);
  return (
    <>
      <header class="head">
        <div>
          {under && (
            <div class="crumbs">
              <a href={href(["shards"])}>Shards</a>
            </div>
          )}
          <h1>{under ? `Shards ${under}…` : "Shards"}</h1>
        </div>
      </header>
      <Shown live={live} what="shards">
        {(shards) => {
          const { cells, prefixLen, grouped, exact, chosen } = shards;
          const most = Math.max(1, ...[...cells.values()].map((cell) => cell.waiting));
          return (
            <>
              <Panel
                title={
                  grouped
                    ? `${count(16 ** (prefixLen - under.length))} shards, by their first ${under.length + 2} characters`
                    : plural(cells.size, "shard")
                }
                right={
                  <span class="quiet">
                    {exact ? "" : "the index is larger than listed so far; each refresh lists more"}
                  </span>
                }
              >
                <div class={cells.size > 16 ? "shards many" : "shards"}>
                  {[...cells].map(([shard, cell]) => (
                    <a
                      key={shard}
                      class="shard"
                      href={grouped ? href(["shards"], { under: shard }) : href(["tasks"], { shard })}
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
                      {cells.size <= 16 && chosen > 0 && (
                        <span class="quiet wrap">{pollersOf(cell, shards.everywhere)}</span>
                      )}
                    </a>
                  ))}
                </div>
              </Panel>
              <p class="quiet">{pollingText(shards)}</p>
              {shards.unknownOwners && (
                <div class="said warn">The owners of shards are not shown: {shards.unknownOwners}</div>
              )}
              {shards.owners.length > 0 && <ShardOwners blocks={shards.owners} />}
            </>
          );
        }}
      </Shown>
    </>
  );
}

function pollersOf(cell: Cell, everywhere: number): string {
  const named = cell.workers.join(", ");
  if (!everywhere) return named || "no worker";
  return named ? `${named} and ${everywhere} that poll all` : `${everywhere} that poll all`;
}

function title(shard: string, cell: Cell): string {
  return `shard ${shard}: ${cell.waiting} waiting, ${cell.running} running${cell.workers.length ? `, ${cell.workers.join(", ")}` : ""}`;
}
