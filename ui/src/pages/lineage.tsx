/** What a partition was made from, and what was made from it. */

import type { JSX } from "preact";
import { type Ancestry, ancestry, type Piece } from "../dispatcher/ancestry";
import type { Lineage } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { amend, href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Graph } from "../show/graph";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { RunLink } from "../show/text";
import { WithDispatcher } from "./pipelines";

// What was committed has one lineage for ever; it is forgotten with the tab.
const known = new Map<string, Lineage>();

export function LineagePage({ name, query }: { name: string; query: Record<string, string> }): JSX.Element {
  return (
    <WithDispatcher title="Lineage">
      {(dispatcher) => <One dispatcher={dispatcher} name={name} query={query} />}
    </WithDispatcher>
  );
}

interface Wanted {
  dispatcher: Dispatcher;
  name: string;
  query: Record<string, string>;
}

function One({ dispatcher, name, query }: Wanted): JSX.Element {
  const partition = query.partition ?? "";
  const depth = Math.min(10, Math.max(1, Number(query.depth) || 3));
  const live = useLive(() => ancestry(dispatcher, name, partition, depth, known), [name, partition, depth]);
  return (
    <>
      <header class="head">
        <div>
          <div class="crumbs">
            <a href={href(["dataset", name], { partition })}>{name}</a>
          </div>
          <h1>Lineage of {partition}</h1>
        </div>
        <div class="right">
          <label class="field">
            Steps
            <select
              value={String(depth)}
              onChange={(event) => amend(["lineage", name], { partition, depth: event.currentTarget.value })}
            >
              {[1, 2, 3, 5, 10].map((n) => (
                <option key={n} value={String(n)}>
                  {n}
                </option>
              ))}
            </select>
          </label>
        </div>
      </header>
      <Shown live={live} what="the lineage">
        {(found) => (
          <>
            <Panel>
              <Drawn found={found} />
              {found.more && (
                <p class="quiet">
                  The lineage is too large to show: choose fewer steps, or start from another partition.
                </p>
              )}
            </Panel>
            <Said found={found} />
          </>
        )}
      </Shown>
    </>
  );
}

function link(piece: Piece): string {
  return piece.partition === null
    ? href(["dataset", piece.dataset])
    : href(["lineage", piece.dataset], { partition: piece.partition });
}

function Drawn({ found }: { found: Ancestry }): JSX.Element {
  if (found.pieces.size === 1)
    return <Empty title="It has no inputs and no readers">It comes from a source, and was not read yet.</Empty>;
  const nodes = [...found.pieces.values()].map((piece) => ({
    id: piece.id,
    title: piece.dataset,
    lines: [piece.range],
    href: link(piece),
    class: piece.id === found.here ? "here" : "",
  }));
  return (
    <Graph
      nodes={nodes}
      edges={found.edges}
      label={`Lineage of ${found.here}; the table below has the same content`}
    />
  );
}

function Said({ found }: { found: Ancestry }): JSX.Element {
  const name = (id: string): JSX.Element => {
    const piece = found.pieces.get(id)!;
    return (
      <a href={href(["dataset", piece.dataset], { partition: piece.partition })}>
        {piece.dataset} {piece.range}
      </a>
    );
  };
  return (
    <Panel title="As a table" flush>
      <table class="stack">
        <Head columns={["piece", "was made from", "by run"]} />
        <tbody>
          {[...found.pieces.values()].map((piece) => (
            <tr key={piece.id}>
              <td class="wrap">{name(piece.id)}</td>
              <td class="wrap" data-name="made from">
                {found.edges
                  .filter((edge) => edge.to === piece.id)
                  .map((edge) => (
                    <div key={edge.from}>{name(edge.from)}</div>
                  ))}
              </td>
              <td data-name="by run">
                {piece.taskId && (
                  <>
                    {piece.partition === null && <span class="quiet">last by </span>}
                    <RunLink id={piece.taskId} />
                  </>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}
