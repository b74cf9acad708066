/** All datasets. */

import type { JSX } from "preact";
import type { DatasetLine } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { listAll } from "../dispatcher/paging";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Empty, Panel, Shown } from "../show/states";
import { count } from "../show/text";
import { WithDispatcher } from "./pipelines";

export function DatasetsPage(): JSX.Element {
  return <WithDispatcher title="Datasets">{(dispatcher) => <All dispatcher={dispatcher} />}</WithDispatcher>;
}

/** A dataset by its place: dag.job, or dag.job[1]. */
export function placeOf(dataset: DatasetLine): string {
  return `${dataset.dag}.${dataset.job}${dataset.output ? `[${dataset.output}]` : ""}`;
}

function All({ dispatcher }: { dispatcher: Dispatcher }): JSX.Element {
  const live = useLive(() => listAll<DatasetLine>(dispatcher, ["datasets"], "datasets"), []);
  return (
    <>
      <header class="head">
        <h1>Datasets</h1>
      </header>
      <Shown live={live} what="datasets">
        {({ items: datasets, more }) => (
          <Panel flush>
            {datasets.length === 0 ? (
              <Empty title="No datasets yet">Datasets appear when a pipeline is deployed.</Empty>
            ) : (
              <table class="stack">
                <thead>
                  <tr>
                    <th scope="col">dataset</th>
                    <th scope="col">published as</th>
                    <th scope="col">pipeline</th>
                    <th scope="col">current generation</th>
                    <th scope="col">
                      <span class="hidden-text">more</span>
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {datasets.map((each) => (
                    <tr key={each.id}>
                      <td>
                        <a href={href(["dataset", placeOf(each)])}>{placeOf(each)}</a>
                      </td>
                      <td>{each.name}</td>
                      <td>
                        <a href={href(["pipeline", each.dag])}>{each.dag}</a>
                      </td>
                      <td class="mono quiet">{each.generation_id?.slice(0, 13) ?? "none"}</td>
                      <td>
                        <a href={href(["why"], { target: placeOf(each) })}>why?</a>
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
            {more && <p class="quiet">Only the first {count(datasets.length)} are shown.</p>}
          </Panel>
        )}
      </Shown>
    </>
  );
}
