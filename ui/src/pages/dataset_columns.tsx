/**
 * The columns of a dataset: their types, what is known of their values, since when each exists, and which columns they are
 * made from.
 */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type {
  ColumnEdge,
  ColumnLine,
  ColumnLineage,
  ColumnStatistics,
  ColumnStatisticsAnswer,
} from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { Problem } from "../s3/problem";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { typeText } from "../show/column_type";
import { Head } from "../show/head";
import { Panel } from "../show/states";
import { Ago, count, plural } from "../show/text";

const EDGES_SHOWN = 4;

export function ColumnsPanel({
  dispatcher,
  name,
  columns,
  partition,
  revision,
}: {
  dispatcher: Dispatcher;
  name: string;
  columns: ColumnLine[];
  partition: string;
  revision: number; // Of the last commit: statistics change with it.
}): JSX.Element {
  const statistics = useStatistics(dispatcher, name, partition, revision);
  const known = new Map((statistics?.columns ?? []).map((each) => [each.name, each]));
  const live = useLive(
    () =>
      dispatcher
        .get<ColumnLineage>(["datasets", name, "column-lineage"])
        // An older dispatcher has no such path.
        .catch((error: unknown) => (error instanceof Problem ? null : Promise.reject(error))),
    [name],
  );
  const origins = new Map((live.value?.columns ?? []).map((each) => [each.column, each]));
  return (
    <Panel title={plural(columns.length, "column")} flush>
      <table class="stack">
        <Head
          columns={["column", "type", "#nulls", "#distinct", "least", "greatest", "since", "made from", "used for"]}
        />
        <tbody>
          {columns.map((each) => (
            <tr key={each.name}>
              <td>{each.name}</td>
              <td class="mono wrap">{typeText(each.type)}</td>
              <Values of={known.get(each.name)} />
              <td data-name="since">
                <Ago at={each.since} />
              </td>
              <td class="wrap" data-name="made from">
                <Edges edges={origins.get(each.name)?.upstream ?? []} />
              </td>
              <td class="wrap" data-name="used for">
                <Edges edges={origins.get(each.name)?.downstream ?? []} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {statistics && !statistics.complete && statistics.measured > 0 && (
        <p class="quiet panel-note">
          Nulls and values are those of {plural(statistics.rows, "row")} in the newest{" "}
          {plural(statistics.measured, "commit")} whose workers measured them, not of all.
        </p>
      )}
      {live.value !== null && live.value.rows.length > 0 && (
        <p class="quiet panel-note">
          Which rows there are is decided by <Edges edges={live.value.rows} />
        </p>
      )}
      {live.value?.unknown.map((each) => (
        <p class="quiet panel-note" key={each}>
          Not all origins are known: {each}
        </p>
      ))}
    </Panel>
  );
}

/** Asked once, and again when something was committed: each answer merges the statistics of many files. */
function useStatistics(
  dispatcher: Dispatcher,
  name: string,
  partition: string,
  revision: number,
): ColumnStatisticsAnswer | null {
  const [answer, setAnswer] = useState<ColumnStatisticsAnswer | null>(null);
  useEffect(() => {
    let isCurrent = true;
    dispatcher.get<ColumnStatisticsAnswer>(["datasets", name, "columns"], { partition_key: partition }).then(
      (found) => isCurrent && setAnswer(found),
      () => isCurrent && setAnswer(null), // An older dispatcher has no such path.
    );
    return () => {
      isCurrent = false;
    };
  }, [name, partition, revision]);
  return answer;
}

function Values({ of }: { of: ColumnStatistics | undefined }): JSX.Element {
  const share = of?.null_share ?? null;
  return (
    <>
      <td class="number nowrap" data-name="nulls">
        {of && of.nulls !== null && (
          <>
            {count(of.nulls)}
            {share !== null && of.nulls > 0 && <span class="quiet"> {percent(share)}</span>}
          </>
        )}
      </td>
      <td class="number" data-name="distinct">
        {of && of.distinct !== null && count(of.distinct)}
      </td>
      <td class="mono wrap value" data-name="least">
        {of && of.least !== null && bound(of.least, of.least_shortened)}
      </td>
      <td class="mono wrap value" data-name="greatest">
        {of && of.greatest !== null && bound(of.greatest, of.greatest_shortened)}
      </td>
    </>
  );
}

function percent(share: number): string {
  const text = (100 * share).toFixed(share < 0.1 ? 1 : 0);
  return share > 0 && Number(text) === 0 ? "< 0.1 %" : `${text} %`;
}

function bound(text: string, shortened: boolean): string {
  return shortened ? `${text}…` : text;
}

function Edges({ edges }: { edges: ColumnEdge[] }): JSX.Element {
  return (
    <>
      {edges.slice(0, EDGES_SHOWN).map((each, n) => (
        <span key={`${each.dataset} ${each.column} ${each.how}`}>
          {n > 0 && ", "}
          <a href={href(["dataset", each.dataset])} title={each.how}>
            {each.dataset}
            {each.column !== null && `.${each.column}`}
          </a>
          {each.column === null && <span class="quiet"> (its rows)</span>}
        </span>
      ))}
      {edges.length > EDGES_SHOWN && <span class="quiet"> and {edges.length - EDGES_SHOWN} more</span>}
    </>
  );
}
