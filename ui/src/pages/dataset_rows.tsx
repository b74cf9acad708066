/** The first rows of a dataset, where the server of this page can read them. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Dispatcher } from "../dispatcher/client";
import { Problem, problemOf } from "../s3/problem";
import { typeText } from "../show/column_type";
import { Empty, Failure, Loading, Panel } from "../show/states";
import { plural } from "../show/text";

const ROWS = 20;

interface Column {
  name: string;
  type: unknown;
}

interface Rows {
  columns: string[];
  rows: (string | boolean | null)[][];
}

interface Looked {
  columns: Column[];
  preview: Rows | null; // Null: only `qo ui` and `qo up` read data; a page in the bucket does not.
  problem: string | null;
}

async function look(dispatcher: Dispatcher, name: string, partition: string): Promise<Looked> {
  const [{ columns }, preview] = await Promise.all([
    dispatcher
      .get<{ columns: Column[] | null }>(["datasets", name, "pieces"], { limit: 1 })
      .catch(() => ({ columns: null })), // Nothing is committed yet.
    dispatcher
      .get<Rows>(["datasets", name, "preview"], { limit: ROWS, partition })
      .catch((error: unknown) => (error instanceof Problem ? error : Promise.reject(error))),
  ]);
  const found = columns ?? [];
  if (!(preview instanceof Problem)) return { columns: found, preview, problem: null };
  // Without a server that reads data, the dispatcher says that it has no such path.
  const isKnown = preview.kind !== "missing" || preview.message.includes("collected");
  return { columns: found, preview: null, problem: isKnown ? preview.message : null };
}

/** Read once, and again when something was committed: each look reads files. */
export function DataPanel({
  dispatcher,
  name,
  partition,
  revision,
}: {
  dispatcher: Dispatcher;
  name: string;
  partition: string;
  revision: number;
}): JSX.Element {
  const [looked, setLooked] = useState<Looked | Problem | null>(null);
  useEffect(() => {
    let isCurrent = true;
    look(dispatcher, name, partition).then(
      (found) => isCurrent && setLooked(found),
      (error) => isCurrent && setLooked(problemOf(error)),
    );
    return () => {
      isCurrent = false;
    };
  }, [name, partition, revision]);
  if (looked === null) return <Loading what="the rows" />;
  if (looked instanceof Problem) return <Failure problem={looked} />;
  const { columns, preview, problem } = looked;
  return (
    <Panel
      title={partition ? `First rows of ${partition}` : "First rows"}
      right={<span class="quiet">{columns.length > 0 && plural(columns.length, "column")}</span>}
      flush
    >
      {preview && preview.rows.length > 0 ? (
        <Table columns={columns} preview={preview} />
      ) : (
        <Empty title={problem ?? "There is nothing to show"}>
          {problem ? (
            ""
          ) : (
            <>
              No rows are committed, or this page cannot read them: <code>qo ui</code> and <code>qo up</code> can.
            </>
          )}
        </Empty>
      )}
    </Panel>
  );
}

function Table({ columns, preview }: { columns: Column[]; preview: Rows }): JSX.Element {
  const types = new Map(columns.map((each) => [each.name, typeText(each.type)]));
  const isNumber = (name: string): boolean =>
    /^(tinyint|smallint|int|bigint|float|double|decimal)/.test(types.get(name) ?? "");
  return (
    <table class="rows">
      <thead>
        <tr>
          {preview.columns.map((name) => (
            <th key={name} scope="col" class={isNumber(name) ? "number" : undefined}>
              {name}
              <div class="quiet">{types.get(name)}</div>
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {preview.rows.map((row, n) => (
          <tr key={n}>
            {row.map((value, at) => (
              <td key={preview.columns[at]} class={isNumber(preview.columns[at]!) ? "number" : "cut"}>
                {value === null ? <span class="quiet">null</span> : String(value)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
