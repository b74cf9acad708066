/** The workers, and whether they are alive. */

import type { JSX } from "preact";
import { told } from "../core/desired";
import { formatDuration } from "../core/duration";
import { seconds } from "../core/instant";
import { healthOf, lookDesired, type WorkerInfo } from "../queue/roster";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, count, dollars, plural } from "../show/text";

const ALL = 200; // Reads in one look: everyone, for up to so many.

export function WorkersPage(): JSX.Element {
  const { queue, bucket } = useApp();
  const live = useLive(async () => {
    const [workers, desired] = await Promise.all([queue.roster.look(ALL), lookDesired(bucket).catch(() => null)]);
    return { workers, desired };
  }, []);
  return (
    <>
      <header class="head">
        <h1>Workers</h1>
      </header>
      <Shown live={live} what="workers">
        {({ workers, desired }) => (
          <>
            {desired?.queue && <div class="said warn">The whole queue is paused {told(desired.queue)}</div>}
            <Panel flush>
              {workers.length === 0 ? (
                <Empty title="No workers">
                  Start one: <code>qo worker --app module:app</code>
                </Empty>
              ) : (
                <Table workers={workers} />
              )}
            </Panel>
            {queue.roster.truncated && <p class="quiet">Only the first 10,000 are listed.</p>}
          </>
        )}
      </Shown>
    </>
  );
}

function Table({ workers }: { workers: WorkerInfo[] }): JSX.Element {
  const { bucket, queue } = useApp();
  useSecond();
  const now = bucket.time.now();
  return (
    <table class="stack">
      <Head
        columns={["worker", "state", "heard", "up", "running", "#completed", "#failed", "#lost", "#cost", "shards"]}
      />
      <tbody>
        {workers.map((worker) => (
          <tr key={worker.worker_id}>
            <td class="wrap">
              <a href={href(["worker", worker.worker_id])}>{worker.worker_id}</a>
            </td>
            <td>
              <Badge status={healthOf(worker, now, queue.silentMaxS)}>
                {healthOf(worker, now, queue.silentMaxS) === "leaving" ? worker.state : undefined}
              </Badge>
            </td>
            <td data-name="heard">
              <Ago at={worker.last_heartbeat} />
            </td>
            <td class="nowrap" data-name="up">
              {formatDuration(now - (seconds(worker.started_at) ?? now))}
            </td>
            <td>
              <Slots worker={worker} />
            </td>
            <td class="number" data-name="completed">
              {count(worker.tasks_completed)}
            </td>
            <td class="number" data-name="failed">
              {worker.tasks_failed ? <span class="s-failed">{count(worker.tasks_failed)}</span> : 0}
            </td>
            <td class="number" data-name="lost">
              {count(worker.lost)}
            </td>
            <td class="number" data-name="cost">
              {dollars(worker.dollars)}
            </td>
            <td class="second" data-name="shards">
              {shardsOf(worker)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function Slots({ worker }: { worker: WorkerInfo }): JSX.Element {
  const busy = worker.current_tasks.length;
  if (!worker.slots) return <>{busy}</>;
  return (
    <span class="nowrap" style={{ display: "inline-flex", gap: "8px", alignItems: "center" }}>
      <span
        class="bar"
        style={{ width: "60px" }}
        role="img"
        aria-label={`${busy} of ${plural(worker.slots, "slot")} busy`}
      >
        <span class="b-running" style={{ width: `${Math.min(100, (100 * busy) / worker.slots)}%`, minWidth: "0" }} />
      </span>
      {busy}/{worker.slots}
    </span>
  );
}

export function shardsOf(worker: WorkerInfo): string {
  if (!worker.shards.length) return worker.leasing ? "none" : "all";
  if (worker.shards.length <= 4) return worker.shards.join(",");
  return `${worker.shards.slice(0, 3).join(",")} +${worker.shards.length - 3}`;
}
