/** What a job costs: how long its runs took and waited, and what worker time they took in all, period by period. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatSpan } from "../core/duration";
import type { Effort, EffortPeriod } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { Problem } from "../s3/problem";
import { useLive } from "../shell/ticker";
import { BarChart } from "../show/bar_chart";
import type { Part } from "../show/bars";
import { Head } from "../show/head";
import { Panel } from "../show/states";
import { count, exact, plural } from "../show/text";

const TABLE = "effort-table";

export function EffortPanel({
  dispatcher,
  dag,
  job,
}: {
  dispatcher: Dispatcher;
  dag: string;
  job: string;
}): JSX.Element | null {
  const live = useLive(
    () =>
      dispatcher
        .get<Effort>(["dags", dag, "effort"], { job })
        // An older dispatcher has no such path.
        .catch((error: unknown) =>
          error instanceof Problem && error.kind === "missing" ? null : Promise.reject(error),
        ),
    [dag, job],
  );
  const [chosen, choose] = useState<string | null>(null); // By its time: new periods move the others to the left.
  const effort = live.value;
  if (effort === null || effort.periods.length === 0) return null;
  const { periods } = effort;
  const found = periods.findIndex((each) => each.begin === chosen);
  const at = found < 0 ? periods.length - 1 : found;
  const values = (of: (period: EffortPeriod) => number | null): (number | null)[] => periods.map(of);
  const span = (value: number | null): string => (value === null ? "none" : formatSpan(value));
  const charts: [title: string, parts: Part[], say: (period: EffortPeriod) => string][] = [
    [
      "Half ran within",
      [{ name: "ran", colour: "--accent", values: values((each) => each.median_s) }],
      (each) => span(each.median_s),
    ],
    [
      "Worker time in all",
      [{ name: "worker time", colour: "--running", values: values((each) => each.worker_s) }],
      (each) => span(each.worker_s),
    ],
    [
      "Half waited for",
      [{ name: "waited", colour: "--archived", values: values((each) => each.waited_s) }],
      (each) => span(each.waited_s),
    ],
    [
      "Runs",
      [
        { name: "completed", colour: "--completed", values: values((each) => each.tasks - each.failed) },
        { name: "failed", colour: "--failed", values: values((each) => each.failed) },
      ],
      (each) =>
        [plural(each.tasks, "run"), each.failed > 0 && `${count(each.failed)} failed`].filter(Boolean).join(", "),
    ],
  ];
  return (
    <Panel
      title={`What the last ${plural(effort.tasks, "run")} of ${job} took, each bar ${formatSpan(effort.period_s)}`}
    >
      <div class="trends">
        {charts.map(([title, parts, say]) => (
          <BarChart
            key={title}
            title={title}
            parts={parts}
            labels={periods.map((each) => `${exact(each.begin)}: ${say(each)}`)}
            values={periods.map(say)}
            at={at}
            onChoose={(n) => choose(periods[n]!.begin)}
            table={TABLE}
          />
        ))}
      </div>
      <p class="quiet trend-point">from {exact(periods[at]!.begin)}</p>
      <details id={TABLE}>
        <summary>The same as a table</summary>
        <table class="stack">
          <Head
            columns={[
              "from",
              "#runs",
              "#failed",
              "#attempts",
              "#half ran within",
              "#95 % within",
              "#half waited for",
              "#worker time",
            ]}
          />
          <tbody>
            {[...periods].reverse().map((each) => (
              <tr key={each.begin}>
                <td>{exact(each.begin)}</td>
                <td class="number" data-name="runs">
                  {count(each.tasks)}
                </td>
                <td class="number" data-name="failed">
                  {count(each.failed)}
                </td>
                <td class="number" data-name="attempts">
                  {count(each.attempts)}
                </td>
                <td class="number" data-name="half ran within">
                  {span(each.median_s)}
                </td>
                <td class="number" data-name="95 % within">
                  {span(each.p95_s)}
                </td>
                <td class="number" data-name="half waited for">
                  {span(each.waited_s)}
                </td>
                <td class="number" data-name="worker time">
                  {span(each.worker_s)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </Panel>
  );
}
