/** All pipelines. */

import type { ComponentChildren, JSX } from "preact";
import type { DagLine } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { listAll } from "../dispatcher/paging";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, count } from "../show/text";

/** Pages of pipelines need a dispatcher; without one they say how to get it. */
export function WithDispatcher({
  title,
  children,
}: {
  title: string;
  children: (dispatcher: Dispatcher) => ComponentChildren;
}): JSX.Element {
  const { dispatcher } = useApp();
  if (dispatcher !== null) return <>{children(dispatcher)}</>;
  return (
    <>
      <header class="head">
        <h1>{title}</h1>
      </header>
      <Panel>
        <Empty title="No dispatcher is configured">
          Pipelines need a dispatcher: run <code>qo up pipeline.yaml</code>, or deploy the page with its address.
        </Empty>
      </Panel>
    </>
  );
}

export function PipelinesPage(): JSX.Element {
  return <WithDispatcher title="Pipelines">{(dispatcher) => <All dispatcher={dispatcher} />}</WithDispatcher>;
}

function All({ dispatcher }: { dispatcher: Dispatcher }): JSX.Element {
  const live = useLive(() => listAll<DagLine>(dispatcher, ["dags"], "dags"), []);
  useSecond();
  return (
    <>
      <header class="head">
        <h1>Pipelines</h1>
      </header>
      <Shown live={live} what="pipelines">
        {({ items: dags, more }) => (
          <Panel flush>
            {dags.length === 0 ? (
              <Empty title="No pipelines yet">
                Deploy one: <code>qo dag deploy pipeline.yaml</code>
              </Empty>
            ) : (
              <table class="stack">
                <Head columns={["pipeline", "state", "#version", "#jobs", "next version", "changed"]} />
                <tbody>
                  {dags.map((dag) => (
                    <tr key={dag.name}>
                      <td>
                        <a href={href(["pipeline", dag.name])}>{dag.name}</a>
                      </td>
                      <td>
                        {dag.paused !== null ? (
                          <Badge status="paused">paused{dag.paused && `: ${dag.paused}`}</Badge>
                        ) : (
                          <Badge status={dag.active === null ? "staged" : "active"} />
                        )}
                      </td>
                      <td class="number" data-name="version">
                        {dag.active ?? "none"}
                      </td>
                      <td class="number" data-name="jobs">
                        {dag.jobs}
                      </td>
                      <td>
                        {dag.next !== null && (
                          <Badge status={dag.next_status ?? "staged"}>
                            {dag.next}, {dag.next_status}
                          </Badge>
                        )}
                      </td>
                      <td>
                        <Ago at={dag.updated_at} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
            {more && <p class="quiet">Only the first {count(dags.length)} are shown.</p>}
          </Panel>
        )}
      </Shown>
    </>
  );
}
