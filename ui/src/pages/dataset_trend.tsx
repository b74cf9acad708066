/** How a dataset moved: rows, bytes, nulls and results of expectations, by commit or by partition. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Trend, TrendPoint } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { Problem } from "../s3/problem";
import { amend, go, href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { BarChart } from "../show/bar_chart";
import type { Part } from "../show/bars";
import { Choice } from "../show/filters";
import { Head } from "../show/head";
import { Empty, Panel } from "../show/states";
import { Ago, bytes, count, exact, plural, RunLink } from "../show/text";

const POINTS = 60;
const TABLE = "trend-table";

interface Asked {
  dispatcher: Dispatcher;
  name: string;
  columns: string[];
  query: Record<string, string>;
}

export function TrendPanel({ dispatcher, name, columns, query }: Asked): JSX.Element | null {
  const { partition = "", generation = "" } = query;
  const column = columns.find((each) => each === query.column) ?? "";
  const by = query.by === "partition" && !partition ? "partition" : "commit";
  const live = useLive(
    () =>
      dispatcher
        .get<Trend>(["datasets", name, "trend"], {
          by,
          column,
          partition_key: partition,
          generation_id: generation,
          limit: POINTS,
        })
        // An older dispatcher has no such path, and without a current generation there is nothing.
        .catch((error: unknown) =>
          error instanceof Problem && error.kind === "missing" ? null : Promise.reject(error),
        ),
    [name, by, column, partition, generation],
  );
  if (live.value === null) return null;
  const set = (change: Record<string, string>): void => amend(["dataset", name], { ...query, ...change });
  const points = [...live.value.points].reverse(); // Time goes to the right.
  return (
    <Panel title={by === "commit" ? "Over the last commits" : "Over the last partitions"}>
      <div class="filters trend-filters">
        {!partition && (
          <fieldset class="choices plain-set">
            <legend class="hidden-text">A bar for each</legend>
            {(["commit", "partition"] as const).map((each) => (
              <button key={each} type="button" aria-pressed={by === each} onClick={() => set({ by: each })}>
                {each}
              </button>
            ))}
          </fieldset>
        )}
        <Choice
          label="Nulls of"
          value={column}
          any="all columns"
          of={columns}
          onChoose={(value) => set({ column: value })}
        />
      </div>
      {points.length === 0 ? (
        <Empty title="Nothing is committed yet" />
      ) : (
        <Charts key={by} points={points} trend={live.value} name={name} column={column} />
      )}
    </Panel>
  );
}

function Charts({
  points,
  trend,
  name,
  column,
}: {
  points: TrendPoint[];
  trend: Trend;
  name: string;
  column: string;
}): JSX.Element {
  const [chosen, choose] = useState<string | null>(null); // By name: new points move the others to the left.
  const names = points.map(nameOf);
  const found = chosen === null ? -1 : names.indexOf(chosen);
  const at = found < 0 ? points.length - 1 : found;
  const open = (n: number): void => {
    const point = points[n]!;
    if (point.revision === null || point.partition_key === null) go(["run", point.task_id]);
    else go(["dataset", name], { partition: point.partition_key });
  };
  const charts: [title: string, parts: Part[], value: (point: TrendPoint) => string][] = [
    [
      "Rows",
      [
        { name: "rows", colour: "--accent", values: points.map((each) => each.rows) },
        { name: "rejected rows", colour: "--failed", values: points.map((each) => each.rejected_rows) },
      ],
      (each) =>
        [
          each.rows !== null && plural(each.rows, "row"),
          each.rejected_rows !== null && `${plural(each.rejected_rows, "row")} rejected`,
        ]
          .filter(Boolean)
          .join(", ") || "not known",
    ],
    [
      "Bytes",
      [{ name: "bytes", colour: "--accent", values: points.map((each) => each.bytes) }],
      (each) => bytes(each.bytes) || (each.revision === null ? "not committed" : "not known"),
    ],
    [
      column ? `Nulls of ${column}` : "Nulls",
      [{ name: "nulls", colour: "--expired", values: points.map((each) => each.nulls) }],
      (each) =>
        each.nulls === null
          ? each.revision === null
            ? "not committed"
            : "not measured"
          : plural(each.nulls, "null"),
    ],
  ];
  if (trend.expectations.length > 0)
    charts.push([
      "Expectations",
      [
        { name: "passed", colour: "--completed", values: points.map((each) => each.passed) },
        { name: "warned", colour: "--expired", values: points.map((each) => each.warned) },
        { name: "failed", colour: "--failed", values: points.map((each) => each.failed) },
      ],
      results,
    ]);
  return (
    <>
      <div class="trends">
        {charts.map(([title, parts, value]) => (
          <BarChart
            key={title}
            title={title}
            parts={parts}
            labels={points.map((each) => `${sayPoint(each)}: ${value(each)}`)}
            values={points.map(value)}
            at={at}
            onChoose={(n) => choose(names[n]!)}
            onOpen={open}
            table={TABLE}
          />
        ))}
      </div>
      <p class="quiet trend-point">
        <Where point={points[at]!} name={name} /> {exact(points[at]!.at)}
        {points[at]!.replaced && ", replaced since"}
      </p>
      {trend.expectations.length > 0 && <Expectations trend={trend} />}
      <details id={TABLE}>
        <summary>The same as a table</summary>
        <Points points={points} name={name} />
      </details>
    </>
  );
}

function nameOf(point: TrendPoint): string {
  return `${point.task_id}/${point.attempt}/${point.revision}`;
}

function sayPoint(point: TrendPoint): string {
  const what = point.partition_key ?? (point.cursor === null ? "all" : `cursor ${point.cursor}`);
  return point.revision === null ? `${what}, rejected` : what;
}

function results(point: TrendPoint): string {
  const some = (["passed", "warned", "failed"] as const).filter((each) => point[each] > 0);
  return some.map((each) => `${count(point[each])} ${each}`).join(", ") || "none checked";
}

function Where({ point, name }: { point: TrendPoint; name: string }): JSX.Element {
  if (point.revision === null || point.partition_key === null)
    return <a href={href(["run", point.task_id])}>{sayPoint(point)}</a>;
  return <a href={href(["dataset", name], { partition: point.partition_key })}>{sayPoint(point)}</a>;
}

function Expectations({ trend }: { trend: Trend }): JSX.Element {
  return (
    <table class="stack expectations">
      <Head columns={["expectation", "severity", "#passed", "#violated"]} />
      <tbody>
        {trend.expectations.map((each) => (
          <tr key={`${each.name} ${each.kind} ${each.severity}`}>
            <td class="wrap">{each.name}</td>
            <td class="quiet">{each.severity}</td>
            <td class="number" data-name="passed">
              {count(each.passed)}
            </td>
            <td class={each.violated ? "number s-failed" : "number"} data-name="violated">
              {count(each.violated)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Points({ points, name }: { points: TrendPoint[]; name: string }): JSX.Element {
  return (
    <table class="stack">
      <Head columns={["what", "#rows", "#bytes", "#nulls", "expectations", "#rejected rows", "run", "when"]} />
      <tbody>
        {[...points].reverse().map((each) => (
          <tr key={nameOf(each)}>
            <td class="wrap">
              <Where point={each} name={name} />
            </td>
            <td class="number" data-name="rows">
              {each.rows === null ? "" : count(each.rows)}
            </td>
            <td class="number" data-name="bytes">
              {bytes(each.bytes)}
            </td>
            <td class="number" data-name="nulls">
              {each.nulls === null ? "" : count(each.nulls)}
            </td>
            <td data-name="expectations">{results(each)}</td>
            <td class="number" data-name="rejected rows">
              {each.rejected_rows === null ? "" : count(each.rejected_rows)}
            </td>
            <td>
              <RunLink id={each.task_id} />
            </td>
            <td class="quiet">
              <Ago at={each.at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
