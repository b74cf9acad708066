/** Partitions over jobs: the column of a day shows where it got stuck. */

import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import type { Grid, GridCell } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Empty, Panel, Shown } from "../show/states";
import { count, exact, plural } from "../show/text";
import { RangesPanel } from "./pipeline_ranges";

const COLUMNS = 60;

interface Asked {
  dispatcher: Dispatcher;
  dag: string;
  next: number | null; // The version that is being built.
  query: Record<string, string>;
}

export function GridPanel({ dispatcher, dag, next, query }: Asked): JSX.Element {
  const { before = "", version = "", from = "", to = "" } = query; // From a key on, to another: a range that was opened.
  const live = useLive(
    () =>
      dispatcher.get<Grid>(["dags", dag, "grid"], { from_key: from, before: before || to, version, limit: COLUMNS }),
    [dag, from, before || to, version],
  );
  const at = (change: Record<string, string | null>): string =>
    href(["pipeline", dag], { view: "partitions", version, from, to, before, ...change });
  // While another part is loaded, what is there stays, so that the focus does.
  const wasPart = useRef(false);
  const isPart =
    Boolean(before || from || to) || (live.value === null ? wasPart.current : live.value.before !== null);
  wasPart.current = isPart;
  return (
    <>
      {isPart && <RangesPanel dispatcher={dispatcher} dag={dag} query={query} />}
      <Shown live={live} what="the partitions">
        {(grid) => (
          <Panel
            title={
              isPart ? `${plural(grid.keys.length, "key")}${spanOf(grid)}` : `Partitions of version ${grid.version}`
            }
            right={
              <span class="choices">
                {next !== null && (
                  <a
                    class="button"
                    href={at({ version: version ? null : String(next), before: null, from: null, to: null })}
                  >
                    {version ? "The active version" : `Version ${next}, which is being built`}
                  </a>
                )}
                {before && (
                  <a class="button" href={at({ before: null })}>
                    Newest
                  </a>
                )}
                {grid.before && (
                  <a class="button" href={at({ before: grid.before })}>
                    Older
                  </a>
                )}
              </span>
            }
            flush
          >
            {grid.keys.length === 0 ? (
              <Empty title="There are no partitions">
                They appear when a source announces one. Datasets that follow a cursor have none.
              </Empty>
            ) : (
              <Matrix grid={grid} chosen={query.key && query.job ? `${query.job}@${query.key}` : ""} />
            )}
            {grid.more_jobs && <p class="quiet">Only the first {count(200)} jobs are shown.</p>}
          </Panel>
        )}
      </Shown>
    </>
  );
}

function spanOf(grid: Grid): string {
  return grid.keys.length < 2 ? "" : ` from ${grid.keys.at(-1)} to ${grid.keys[0]}`;
}

function Matrix({ grid, chosen }: { grid: Grid; chosen: string }): JSX.Element {
  const keys = [...grid.keys].reverse(); // Time goes to the right.
  return (
    <>
      <table class="grid">
        <thead>
          <tr>
            <th scope="col">
              <span class="hidden-text">job</span>
            </th>
            {keys.map((key) => (
              <th key={key} scope="col">
                <span>{key}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {grid.rows.map((row) => {
            const cells = new Map(row.cells.map((cell) => [cell.key, cell]));
            const shapes = new Set(row.cells.map((cell) => shapeOf(cell.key)));
            return (
              <tr key={row.edition_id}>
                <th scope="row">
                  <a href={href(["pipeline", grid.dag], { focus: row.job })}>{row.job}</a>
                </th>
                {keys.map((key) => (
                  <td key={key} class={chosen === `${row.job}@${key}` ? "chosen" : undefined}>
                    {shapes.has(shapeOf(key)) && (
                      <Square dag={grid.dag} job={row.job} partition={key} cell={cells.get(key)} />
                    )}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
      <Key grid={grid} />
    </>
  );
}

/** Months are no gaps in a job of days: only keys that look like its own are expected of it. */
function shapeOf(key: string): string {
  return key.replace(/[0-9]/g, "9");
}

function Square({
  dag,
  job,
  partition,
  cell,
}: {
  dag: string;
  job: string;
  partition: string;
  cell: GridCell | undefined;
}): JSX.Element {
  if (!cell)
    return (
      <a
        class="cell missing"
        href={href(["why"], { target: `${dag}.${job}@${partition}` })}
        title={`${job}@${partition}: nothing yet. Why?`}
        tabIndex={-1}
      >
        <span class="hidden-text">{`${job} ${partition}: nothing yet, why?`}</span>
      </a>
    );
  const isDone = cell.state === "done";
  const rebuilt = !isDone && cell.committed_at !== null;
  const text = [
    `${job}@${partition}: ${cell.state}`,
    cell.committed_at && `committed ${exact(cell.committed_at)}`,
    cell.rows !== null && plural(cell.rows, "row"),
    cell.since && `since ${exact(cell.since)}`,
  ]
    .filter(Boolean)
    .join(", ");
  const link =
    isDone || !cell.task_id ? href(["dataset", `${dag}.${job}`], { partition }) : href(["run", cell.task_id]);
  return (
    <a class={`cell c-${cell.state} ${rebuilt ? "again" : ""}`} href={link} title={text} aria-label={text}>
      {cell.state === "failed" ? "×" : cell.state === "running" ? "▸" : ""}
    </a>
  );
}

function Key({ grid }: { grid: Grid }): JSX.Element {
  const counted = (state: string): number =>
    grid.rows.reduce((sum, row) => sum + row.cells.filter((cell) => cell.state === state).length, 0);
  return (
    <p class="grid-key quiet">
      {(["done", "running", "waiting", "failed"] as const).map((state) => (
        <span key={state}>
          <i class={`cell c-${state}`} /> {state} {count(counted(state))}
        </span>
      ))}
      <span>
        <i class="cell missing" /> nothing yet
      </span>
      <span>
        <i class="cell c-running again" /> made again, the old data is served
      </span>
    </p>
  );
}
