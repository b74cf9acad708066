/** All partitions of a pipeline at once, however many there are: ranges of keys, each of which opens. */

import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import type { GridRanges } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { Problem } from "../s3/problem";
import { amend, go, href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Head } from "../show/head";
import { RangeMap } from "../show/range_map";
import { rangesFor, type Spot, STATES, spotOf, totalOf } from "../show/ranges";
import { Panel } from "../show/states";
import { count, plural } from "../show/text";

const MANY = 5_000; // Keys, whose counts are asked for less often: counting them takes the dispatcher a while.
const PATIENCE_MS = 27_000;

interface Asked {
  dispatcher: Dispatcher;
  dag: string;
  query: Record<string, string>;
}

export function RangesPanel({ dispatcher, dag, query }: Asked): JSX.Element | null {
  const { version = "", from = "", to = "", job = "", key = "" } = query;
  const ranges = rangesFor(innerWidth);
  const of = JSON.stringify([dag, version, from, to, ranges]);
  const last = useRef<{ of: string; at: number; answer: GridRanges } | null>(null);
  const live = useLive(async () => {
    const before = last.current;
    const isFresh = before !== null && performance.now() - before.at < PATIENCE_MS;
    if (before?.of === of && isFresh && before.answer.keys > MANY) return before.answer;
    try {
      const asked = { version, from_key: from, before: to, ranges };
      const answer = await dispatcher.get<GridRanges>(["dags", dag, "grid", "ranges"], asked);
      last.current = { of, at: performance.now(), answer };
      return answer;
    } catch (error) {
      if (error instanceof Problem && error.kind === "missing") return null; // An older dispatcher has no such path.
      throw error;
    }
  }, [of]);
  // While another part is loaded, the one before stays, so that the focus does.
  const answer = live.value ?? (live.problem === null ? (last.current?.answer ?? null) : null);
  if (answer === null || answer.dag !== dag || answer.rows.length === 0) return null;
  const at = spotOf(answer, job, key) ?? { row: 0, column: answer.ranges.length - 1 };
  const common = { view: "partitions", version };
  const choose = (spot: Spot): void =>
    amend(["pipeline", dag], {
      ...query,
      ...common,
      job: answer.rows[spot.row]!.job,
      key: answer.ranges[spot.column]!.first,
    });
  const inside = (spot: Spot): Record<string, string | null> => {
    const range = answer.ranges[spot.column]!;
    return { ...common, from: range.from_key, to: range.before, job: answer.rows[spot.row]!.job, key: range.first };
  };
  const open = (spot: Spot): void => {
    const [row, range] = [answer.rows[spot.row]!, answer.ranges[spot.column]!];
    const isDone = row.done[spot.column]! > 0 && !row.running[spot.column] && !row.failed[spot.column];
    if (range.first !== range.last) go(["pipeline", dag], inside(spot));
    else if (isDone) go(["dataset", `${dag}.${row.job}`], { partition: range.first });
    else go(["why"], { target: `${dag}.${row.job}@${range.first}` });
  };
  const isWhole = !from && !to;
  const chosen = answer.ranges[at.column]!;
  return (
    <Panel
      title={`${isWhole ? "All" : "Chosen"} partitions of version ${answer.version}: ${plural(answer.keys, "key")}`}
      right={
        <span class="choices">
          {answer.older !== null && (
            <a class="button" href={href(["pipeline", dag], { ...common, from: null, to: answer.older })}>
              Older
            </a>
          )}
          {!isWhole && (
            <a class="button" href={href(["pipeline", dag], common)}>
              All partitions
            </a>
          )}
          {answer.ranges.length > 1 && (
            <a class="button" href={href(["pipeline", dag], inside(at))}>
              Open {chosen.first === chosen.last ? chosen.first : `${chosen.first} to ${chosen.last}`}
            </a>
          )}
        </span>
      }
    >
      <RangeMap
        answer={answer}
        at={at}
        onChoose={choose}
        onOpen={open}
        onWiden={isWhole ? null : () => go(["pipeline", dag], common)}
      />
      <p class="grid-key quiet">
        {STATES.map((state) => (
          <span key={state}>
            <i class={`cell c-${state}`} /> {state} {count(totalOf(answer, state))}
          </span>
        ))}
        <span>
          <i class="cell missing" /> nothing yet
        </span>
      </p>
      <details>
        <summary>By job, as a table</summary>
        <Sums answer={answer} />
      </details>
    </Panel>
  );
}

function Sums({ answer }: { answer: GridRanges }): JSX.Element {
  return (
    <table class="stack">
      <Head columns={["job", ...STATES.map((state) => `#${state}`)]} />
      <tbody>
        {answer.rows.map((row) => (
          <tr key={row.edition_id}>
            <td>{row.job}</td>
            {STATES.map((state) => (
              <td key={state} class="number" data-name={state}>
                {row.at_least && state !== "done" && "at least "}
                {count(row[state].reduce((sum, n) => sum + n, 0))}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
