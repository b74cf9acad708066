/** Runs over time, by job and partition: waiting and running told apart, and how long they took lately. */

import type { JSX } from "preact";
import { formatSpan } from "../core/duration";
import { seconds } from "../core/instant";
import type { Timeline } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { amend, href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { kindOf } from "../show/badge";
import { Chart } from "../show/chart";
import { Choice } from "../show/filters";
import { Head } from "../show/head";
import { packLanes, quantile, type Run, runOf, waitedS, workedS } from "../show/lanes";
import { Empty, Panel, Shown } from "../show/states";
import { count, exact, plural } from "../show/text";
import { EffortPanel } from "./job_effort";

const TASKS = 300;
const SPANS: Record<string, number> = { "5 minutes": 300, "1 hour": 3600, "6 hours": 21_600, "1 day": 86_400 };
const LANES_MAX = 40; // Of one job.

interface Asked {
  dispatcher: Dispatcher;
  dag: string;
  jobs: string[];
  query: Record<string, string>;
}

export function TimelinePanel({ dispatcher, dag, jobs, query }: Asked): JSX.Element {
  const { job = "", before = "", span = "" } = query;
  const live = useLive(
    () => dispatcher.get<Timeline>(["dags", dag, "timeline"], { job, before, limit: TASKS }),
    [dag, job, before],
  );
  const set = (change: Record<string, string>): void =>
    amend(["pipeline", dag], { view: "timeline", job, before, span, ...change });
  return (
    <>
      <div class="filters">
        <Choice
          label="Job"
          value={job}
          any="all jobs"
          of={jobs}
          onChoose={(value) => set({ job: value, before: "" })}
        />
        <Choice
          label="Span"
          value={span}
          any="all that is listed"
          of={Object.keys(SPANS)}
          onChoose={(value) => set({ span: value })}
        />
      </div>
      <Shown live={live} what="the runs">
        {(timeline) => (
          <>
            <Panel
              title={`The newest ${plural(timeline.tasks.length, "run")}${before ? ` before ${exact(before)}` : ""}`}
              right={
                <span class="choices">
                  {before && (
                    <button type="button" onClick={() => set({ before: "" })}>
                      Newest
                    </button>
                  )}
                  {timeline.before && (
                    <button type="button" onClick={() => set({ before: timeline.before! })}>
                      Older
                    </button>
                  )}
                </span>
              }
            >
              <Gantt timeline={timeline} jobs={jobs} spanS={SPANS[span] ?? null} />
            </Panel>
            {job && <EffortPanel dispatcher={dispatcher} dag={dag} job={job} />}
            <Durations timeline={timeline} jobs={jobs} dag={dag} chosen={job} />
          </>
        )}
      </Shown>
    </>
  );
}

function Gantt({
  timeline,
  jobs,
  spanS,
}: {
  timeline: Timeline;
  jobs: string[];
  spanS: number | null;
}): JSX.Element {
  const now = seconds(timeline.now) ?? 0;
  const all = timeline.tasks.map((task) => runOf(task, now)).filter((run) => run.bars.length);
  const end = Math.max(...all.map((run) => run.to));
  const start = spanS === null ? Math.min(...all.map((run) => run.from)) : end - spanS;
  const runs = all.filter((run) => run.to >= start);
  if (!runs.length) return <Empty title="No run has begun yet">Runs appear when a source announces data.</Empty>;
  const width = Math.max(end - start, 0.001);
  const place = (at: number): number => (100 * (Math.max(at, start) - start)) / width;
  const known = [...jobs, ...new Set(runs.map((run) => run.task.job).filter((name) => !jobs.includes(name)))];
  return (
    <div class="gantt">
      <Scale start={start} width={width} />
      {known.map((name) => {
        const lanes = packLanes(runs.filter((run) => run.task.job === name));
        if (!lanes.length) return null;
        return (
          <section key={name} aria-label={name} class="gantt-job">
            <h3>{name}</h3>
            <div>
              {lanes.slice(0, LANES_MAX).map((lane) => (
                <div key={lane[0]!.task.id} class="lane">
                  {lane.map((run) => (
                    <Work key={run.task.id} run={run} place={place} />
                  ))}
                </div>
              ))}
              {lanes.length > LANES_MAX && (
                <p class="quiet">and {plural(lanes.length - LANES_MAX, "line")} more: choose the job, or a span</p>
              )}
            </div>
          </section>
        );
      })}
      <p class="grid-key quiet">
        <span>
          <i class="work waiting" /> waiting
        </span>
        {["running", "completed", "failed", "retried"].map((kind) => (
          <span key={kind}>
            <i class={`work b-${kindOf(kind)}`} /> {kind}
          </span>
        ))}
      </p>
    </div>
  );
}

function Work({ run, place }: { run: Run; place: (at: number) => number }): JSX.Element {
  const { task } = run;
  const about = task.partition_key ?? (task.cursor === null ? "" : `cursor ${task.cursor}`);
  const text = [
    `${task.job} ${about}: ${task.status}`,
    `waited ${formatSpan(waitedS(run))}`,
    `ran ${formatSpan(workedS(run))}`,
    task.attempts.length > 1 && plural(task.attempts.length, "attempt"),
  ]
    .filter(Boolean)
    .join(", ");
  const [from, to] = [place(run.from), place(run.to)];
  return (
    <a
      class="run"
      href={href(["run", task.id])}
      title={text}
      aria-label={text}
      style={{ left: `${from}%`, width: `max(4px, ${to - from}%)` }}
    >
      {run.bars.map((bar) => (
        <i
          key={`${bar.kind}${bar.from}`}
          class={bar.kind === "waiting" ? "work waiting" : `work b-${kindOf(bar.kind)}`}
          style={{ flexGrow: Math.max(bar.to - bar.from, 0.0001) }}
        />
      ))}
    </a>
  );
}

const MARKS = 5;

function Scale({ start, width }: { start: number; width: number }): JSX.Element {
  return (
    <div class="gantt-scale" aria-hidden="true">
      {Array.from({ length: MARKS }, (_, n) => {
        const at = start + (width * n) / (MARKS - 1);
        return <span key={n}>{exact(new Date(at * 1000).toISOString()).slice(width > 86_400 ? 5 : 11)}</span>;
      })}
    </div>
  );
}

/** How long runs of each job took and waited; of one job, each run over time. */
function Durations({
  timeline,
  jobs,
  dag,
  chosen,
}: {
  timeline: Timeline;
  jobs: string[];
  dag: string;
  chosen: string;
}): JSX.Element | null {
  const now = seconds(timeline.now) ?? 0;
  const ended = timeline.tasks.filter((task) => task.status === "completed").map((task) => runOf(task, now));
  if (!ended.length) return null;
  if (chosen) {
    const ordered = [...ended].sort((a, b) => a.to - b.to);
    return (
      <Panel title={`How long runs of ${chosen} took, in seconds`}>
        <Chart
          times={ordered.map((run) => run.to)}
          series={[
            { name: "ran", colour: "--accent", values: ordered.map(workedS) },
            { name: "waited", colour: "--archived", values: ordered.map(waitedS) },
          ]}
          label={`Seconds that each of the last ${ordered.length} runs of ${chosen} ran and waited`}
          height={160}
        />
      </Panel>
    );
  }
  const span = (values: number[], part: number): string => {
    const value = quantile(values, part);
    return value === null ? "" : formatSpan(value);
  };
  return (
    <Panel title="How long they took" flush>
      <table class="stack">
        <Head columns={["job", "#runs", "#half ran within", "#95 % within", "#half waited for", "#in all"]} />
        <tbody>
          {jobs.map((name) => {
            const own = ended.filter((run) => run.task.job === name);
            if (!own.length) return null;
            const worked = own.map(workedS);
            return (
              <tr key={name}>
                <td>
                  <a href={href(["pipeline", dag], { view: "timeline", job: name })}>{name}</a>
                </td>
                <td class="number" data-name="runs">
                  {count(own.length)}
                </td>
                <td class="number" data-name="half within">
                  {span(worked, 0.5)}
                </td>
                <td class="number" data-name="95 % within">
                  {span(worked, 0.95)}
                </td>
                <td class="number" data-name="half waited">
                  {span(own.map(waitedS), 0.5)}
                </td>
                <td class="number" data-name="in all">
                  {formatSpan(worked.reduce((a, b) => a + b, 0))}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Panel>
  );
}
