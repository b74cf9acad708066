/** Runs: the tasks of pipelines. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { STATUSES } from "../core/task";
import type { RunLine } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { amend, go, href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, RunLink } from "../show/text";
import { WithDispatcher } from "./pipelines";

const PAGE = 50;

type Asked = Record<string, string>;

export function RunsPage({ query }: { query: Asked }): JSX.Element {
  return (
    <WithDispatcher title="Runs">{(dispatcher) => <All dispatcher={dispatcher} query={query} />}</WithDispatcher>
  );
}

function All({ dispatcher, query }: { dispatcher: Dispatcher; query: Asked }): JSX.Element {
  const { dag = "", job = "", status = "", after = "" } = query;
  const live = useLive(
    () =>
      dispatcher.get<{ tasks: RunLine[]; after: string | null }>(["tasks"], {
        dag,
        job: dag ? job : "",
        status,
        after,
        limit: PAGE,
      }),
    [dag, job, status, after],
  );
  return (
    <>
      <header class="head">
        <h1>Runs</h1>
      </header>
      <Filters query={query} />
      <Shown live={live} what="runs">
        {({ tasks, after: next }) => (
          <>
            <Panel flush>
              {tasks.length === 0 ? (
                <Empty title="No run matches">
                  {status || dag ? "Widen the filter." : "They appear when a source has something new: `qo emit`."}
                </Empty>
              ) : (
                <RunTable runs={tasks} />
              )}
            </Panel>
            <footer class="head">
              {after && (
                <a class="button" href={href(["runs"], { ...query, after: "" })}>
                  Newest
                </a>
              )}
              {next && (
                <a class="button" href={href(["runs"], { ...query, after: next })}>
                  Older
                </a>
              )}
            </footer>
          </>
        )}
      </Shown>
    </>
  );
}

function Filters({ query }: { query: Asked }): JSX.Element {
  const [id, setId] = useState("");
  const set = (name: string, value: string): void => amend(["runs"], { ...query, after: "", [name]: value });
  return (
    <form
      class="filters"
      onSubmit={(event) => {
        event.preventDefault();
        if (id.trim()) go(["run", id.trim()]);
      }}
    >
      <label class="field">
        Status
        <select value={query.status ?? ""} onChange={(event) => set("status", event.currentTarget.value)}>
          <option value="">all</option>
          {STATUSES.filter((each) => each !== "archived").map((each) => (
            <option key={each} value={each}>
              {each}
            </option>
          ))}
        </select>
      </label>
      <label class="field">
        Pipeline
        <input
          value={query.dag ?? ""}
          placeholder="any"
          onChange={(event) => set("dag", event.currentTarget.value.trim())}
        />
      </label>
      <label class="field">
        Job
        <input
          value={query.job ?? ""}
          placeholder="any"
          disabled={!query.dag}
          onChange={(event) => set("job", event.currentTarget.value.trim())}
        />
      </label>
      <label class="field">
        Id
        <input
          data-find
          class="mono"
          size={36}
          value={id}
          placeholder="paste an id, press enter (/)"
          onInput={(event) => setId(event.currentTarget.value)}
        />
      </label>
      {/* Of a form with several fields and no such button, browsers take no Enter. */}
      <button type="submit" disabled={!id.trim()}>
        Open
      </button>
    </form>
  );
}

export function RunTable({ runs }: { runs: RunLine[] }): JSX.Element {
  useSecond();
  return (
    <table class="stack">
      <thead>
        <tr>
          <th scope="col">status</th>
          <th scope="col">run</th>
          <th scope="col">job</th>
          <th scope="col">updated</th>
          <th scope="col">of</th>
          <th scope="col" class="number">
            attempt
          </th>
          <th scope="col">worker, error</th>
        </tr>
      </thead>
      <tbody>
        {runs.map((run) => (
          <tr key={run.id}>
            <td>
              <Badge status={run.status}>{run.status === "pending" && !run.released ? "withheld" : undefined}</Badge>
            </td>
            <td>
              <RunLink id={run.id} />
            </td>
            <td>
              <a href={href(["pipeline", run.dag])}>{run.dag}</a>.{run.job}
            </td>
            <td>
              <Ago at={run.updated_at} />
            </td>
            <td class="wrap">{run.partition_key ?? (run.cursor === null ? "" : `cursor ${run.cursor}`)}</td>
            <td class="number" data-name="attempt">
              {run.attempt || ""}
            </td>
            <td class="cut">
              {run.last_error && run.status !== "completed" ? (
                <span class="s-failed" title={run.last_error}>
                  {run.last_error}
                </span>
              ) : (
                run.worker_id
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
