/** One worker. */

import type { JSX } from "preact";
import { told } from "../core/desired";
import { formatDuration } from "../core/duration";
import { seconds } from "../core/instant";
import { workerKey } from "../core/keys";
import { healthOf, lookDesired, readWorker, type WorkerInfo } from "../queue/roster";
import { Problem } from "../s3/problem";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Panel, Shown } from "../show/states";
import { Ago, At, count, dollars, TaskLink } from "../show/text";
import { Slots } from "./workers";

export function WorkerPage({ id }: { id: string }): JSX.Element {
  const { bucket } = useApp();
  const live = useLive(async () => {
    const [stored, desired] = await Promise.all([bucket.get(workerKey(id)), lookDesired(bucket).catch(() => null)]);
    const info = stored && readWorker(stored.text);
    if (!info)
      throw new Problem(
        "missing",
        `There is no worker ${id}.`,
        "A worker that stops in order removes itself from the list; one that was killed stays for a day.",
      );
    return { info, order: desired?.workers[id] ?? null };
  }, [id]);
  return (
    <>
      <header class="head">
        <div>
          <div class="crumbs">
            <a href={href(["workers"])}>Workers</a>
          </div>
          <h1>{id}</h1>
        </div>
      </header>
      <Shown live={live} what="the worker">
        {({ info, order }) => (
          <>
            {order && (
              <div class="said warn">
                Requested state: {order.wanted} {told(order)}
              </div>
            )}
            <Worker info={info} />
          </>
        )}
      </Shown>
    </>
  );
}

function Worker({ info }: { info: WorkerInfo }): JSX.Element {
  const { bucket, queue } = useApp();
  useSecond();
  const now = bucket.time.now();
  const upS = Math.max(1, (seconds(info.last_heartbeat) ?? now) - (seconds(info.started_at) ?? now));
  const numbers: [string, string, string][] = [
    [
      "Completed",
      count(info.tasks_completed),
      `${((info.tasks_completed / upS) * 60).toFixed(1)} a minute on average`,
    ],
    ["Failed attempts", count(info.tasks_failed), ""],
    ["Released", count(info.released), "claimed, and released unfinished"],
    ["Lost", count(info.lost), "leases that other workers took over"],
    ["Requests", count(info.requests), "to the store"],
    ["Cost so far", dollars(info.dollars), "at S3's list price"],
  ];
  return (
    <>
      <dl class="tiles">
        {numbers.map(([name, value, note]) => (
          <div class="tile" key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
            <dd class="note">{note}</dd>
          </div>
        ))}
      </dl>
      <div class="columns">
        <Panel title="Status">
          <dl class="facts">
            <dt>State</dt>
            <dd>
              <Badge status={healthOf(info, now, queue.silentMaxS)} /> <span class="quiet">{info.state}</span>
            </dd>
            <dt>Heartbeat</dt>
            <dd>
              <Ago at={info.last_heartbeat} />
            </dd>
            <dt>Started</dt>
            <dd>
              <At at={info.started_at} />{" "}
              <span class="quiet">{formatDuration(now - (seconds(info.started_at) ?? now))} ago</span>
            </dd>
            <dt>Slots</dt>
            <dd>
              <Slots worker={info} />
            </dd>
            <dt>Shards</dt>
            <dd class="mono">
              {info.shards.join(" ") || (info.leasing ? "none" : "all")}
              {info.leasing && <span class="quiet"> leased</span>}
            </dd>
            {info.inbox_until !== null && (
              <>
                <dt>Inbox</dt>
                <dd>
                  owned until <At at={info.inbox_until} />
                </dd>
              </>
            )}
            <dt>Types</dt>
            <dd>{info.task_types.join(", ") || "none"}</dd>
            {info.paused_types.length > 0 && (
              <>
                <dt>Paused types</dt>
                <dd>{info.paused_types.join(", ")}</dd>
              </>
            )}
            <dt>Where</dt>
            <dd>
              {[info.host, info.pid && `process ${info.pid}`, info.http].filter(Boolean).join(" · ") || "unknown"}
            </dd>
          </dl>
        </Panel>
        <Panel title="Current tasks">
          {info.current_tasks.length === 0 ? (
            <span class="quiet">none</span>
          ) : (
            <ul>
              {info.current_tasks.map((id) => (
                <li key={id}>
                  <TaskLink id={id} />
                </li>
              ))}
            </ul>
          )}
        </Panel>
      </div>
    </>
  );
}
