/** The columns of a dataset: their types, since when each exists, and which columns they are made from. */

import type { JSX } from "preact";
import type { ColumnEdge, ColumnLine, ColumnLineage } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { Problem } from "../s3/problem";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { typeText } from "../show/column_type";
import { Head } from "../show/head";
import { Panel } from "../show/states";
import { Ago, plural } from "../show/text";

const EDGES_SHOWN = 4;

export function ColumnsPanel({
  dispatcher,
  name,
  columns,
}: {
  dispatcher: Dispatcher;
  name: string;
  columns: ColumnLine[];
}): JSX.Element {
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
        <Head columns={["column", "type", "since", "made from", "used for"]} />
        <tbody>
          {columns.map((each) => (
            <tr key={each.name}>
              <td>{each.name}</td>
              <td class="mono wrap">{typeText(each.type)}</td>
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
