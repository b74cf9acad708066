/** The numbers at the top of the overview. */

import type { JSX } from "preact";
import { formatDuration } from "../core/duration";
import type { Overview } from "../queue/overview";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { Shape } from "../show/badge";
import { Chart } from "../show/chart";
import { count, dollars, plural } from "../show/text";

export function Tiles({ overview }: { overview: Overview }): JSX.Element {
  const { queue } = useApp();
  const { ready, running, byStatus, read, total } = overview;
  const times = queue.samples.map((each) => each.at);
  const oldest = ready.oldestS === null ? null : overview.now - ready.oldestS;
  const whole = total.exact && read >= total.count;
  const known = (status: string): string => {
    const n = byStatus[status] ?? 0;
    return read || whole ? `${whole || n === 0 ? "" : "≈ "}${count(n)}` : "…";
  };
  return (
    <div class="tiles">
      <a class="tile" href={href(["tasks"], { status: "pending" })}>
        <span class="name">
          <Shape status="pending" /> Waiting
        </span>
        <span class="value">
          {count(ready.due + ready.later)}
          {ready.exact ? "" : "+"}
        </span>
        <span class="note">
          {ready.later
            ? `${count(ready.later)}${ready.exact ? "" : "+"} not due yet`
            : ready.due
              ? "all due"
              : "nothing waits"}
        </span>
        <Spark times={times} values={queue.samples.map((each) => each.waiting)} colour="--pending" what="waiting" />
      </a>
      <a class="tile" href={href(["tasks"], { status: "running" })}>
        <span class="name">
          <Shape status="running" /> Running
        </span>
        <span class="value">
          {count(running.count)}
          {running.exact ? "" : "+"}
        </span>
        <span class="note">on {plural(overview.active, "worker")}</span>
        <Spark times={times} values={queue.samples.map((each) => each.running)} colour="--running" what="running" />
      </a>
      <a class="tile" href={href(["failures"])}>
        <span class="name">
          <Shape status="failed" /> Failed
        </span>
        <span class="value">{known("failed")}</span>
        <span class="note">
          {overview.failures.length
            ? plural(overview.failures.length, "kind of error", "kinds of errors")
            : whole
              ? "none"
              : `none in ${count(read)} tasks read`}
        </span>
      </a>
      <div class="tile">
        <span class="name">Oldest ready task</span>
        <span class="value">{oldest === null ? "none" : formatDuration(oldest)}</span>
        <span class="note">
          {oldest === null ? "nothing waits" : ready.exact ? "has been waiting" : "of those listed so far"}
        </span>
      </div>
      <div class="tile">
        <span class="name">
          <Shape status="completed" /> Throughput
        </span>
        <span class="value">
          {overview.perMinute === null ? "…" : count(Math.round(overview.perMinute))}
          <small class="quiet"> /min</small>
        </span>
        <span class="note">{count(overview.completed)} by these workers</span>
        <Spark
          times={times.slice(1)}
          values={queue.samples.slice(1).map((each, n) => Math.max(0, each.completed - queue.samples[n]!.completed))}
          colour="--completed"
          what="completed"
        />
      </div>
      <div class="tile">
        <span class="name">Cost so far</span>
        <span class="value">{dollars(overview.dollars)}</span>
        <span class="note">{plural(overview.requests, "request")} by these workers</span>
      </div>
    </div>
  );
}

function Spark({
  times,
  values,
  colour,
  what,
}: {
  times: number[];
  values: number[];
  colour: string;
  what: string;
}): JSX.Element {
  if (times.length < 3) return <div class="spark" />;
  const series = [{ name: what, colour, values }];
  return (
    <div class="spark">
      <Chart
        times={times}
        series={series}
        height={26}
        spark
        label={`${what} since this page was opened: from ${values[0]} to ${values.at(-1)}`}
      />
    </div>
  );
}
