/** Runs: the tasks of pipelines. */

import type { JSX } from "preact";
import { STATUSES } from "../core/task";
import type { RunLine } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { amend, go, href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Choice, Filters, Word } from "../show/filters";
import { Head } from "../show/head";
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
  const { dag = "", job = "", status = "", superseded = "", after = "" } = query;
  const live = useLive(
    () =>
      dispatcher.get<{ tasks: RunLine[]; after: string | null }>(["tasks"], {
        dag,
        job: dag ? job : "",
        status,
        superseded: status === "failed" && superseded ? "true" : "",
        after,
        limit: PAGE,
      }),
    [dag, job, status, superseded, after],
  );
  return (
    <>
      <header class="head">
        <h1>Runs</h1>
      </header>
      <Narrowed query={query} />
      <Shown live={live} what="runs">
        {({ tasks, after: next }) => (
          <>
            <Panel flush>
              {tasks.length === 0 ? (
                <Empty title="No run matches">
                  {next
                    ? "None of the newest runs is open: check older ones."
                    : status || dag
                      ? "Widen the filter."
                      : "Runs appear when a source emits an event: `qo emit`."}
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

function Narrowed({ query }: { query: Asked }): JSX.Element {
  const set = (name: string) => (value: string) => amend(["runs"], { ...query, after: "", [name]: value });
  const statuses = STATUSES.filter((each) => each !== "archived");
  return (
    <Filters idOf={(text) => text.trim() || null} wrong="not a valid id" open={(id) => go(["run", id])}>
      <Choice label="Status" value={query.status} any="all" of={statuses} onChoose={set("status")} />
      {query.status === "failed" && (
        <Choice
          label="Superseded"
          value={query.superseded}
          any="left out"
          of={["shown"]}
          onChoose={set("superseded")}
        />
      )}
      <Word label="Pipeline" value={query.dag} onChoose={set("dag")} />
      <Word label="Job" value={query.job} disabled={!query.dag} onChoose={set("job")} />
    </Filters>
  );
}

export function RunTable({ runs }: { runs: RunLine[] }): JSX.Element {
  useSecond();
  return (
    <table class="stack">
      <Head columns={["status", "run", "job", "updated", "of", "#attempt", "worker, error"]} />
      <tbody>
        {runs.map((run) => (
          <tr key={run.id}>
            <td>
              {run.superseded ? (
                <Badge status="archived">superseded</Badge>
              ) : (
                <Badge status={run.status}>
                  {run.status === "pending" && !run.released ? "withheld" : undefined}
                </Badge>
              )}
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
              {run.superseded ? (
                <span class="quiet" title={run.last_error ?? undefined}>
                  {run.superseded.text}
                </span>
              ) : run.last_error && run.status !== "completed" ? (
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
