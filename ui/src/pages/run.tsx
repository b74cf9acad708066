/** One run: how far it is, its attempts, what it read and what it committed. */

import type { JSX } from "preact";
import type { Check, DatasetLine, RunShown } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { listAll } from "../dispatcher/paging";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Confirm } from "../show/confirm";
import { Panel, Shown } from "../show/states";
import { Copy } from "../show/text";
import { Tree } from "../show/tree";
import { placeOf } from "./datasets";
import { WithDispatcher } from "./pipelines";
import { Attempts, Pieces } from "./run_attempts";
import { Log } from "./run_log";
import { State } from "./run_state";

export function RunPage({ id }: { id: string }): JSX.Element {
  return <WithDispatcher title="Run">{(dispatcher) => <One dispatcher={dispatcher} id={id} />}</WithDispatcher>;
}

interface Looked {
  run: RunShown;
  names: Map<string, string>; // Of datasets, by id.
  checks: Check[];
}

async function look(dispatcher: Dispatcher, id: string, known: Map<string, string>): Promise<Looked> {
  const run = await dispatcher.get<RunShown>(["tasks", id]);
  await learnNames(dispatcher, run, known);
  const { checks } = await dispatcher
    .get<{ checks: Check[] }>(["checks"], { task_id: id, limit: 1000 })
    .catch(() => ({ checks: [] }));
  return { run, names: known, checks: checks.filter((each) => each.task_id === id) };
}

/** Names of the datasets that a run has read and written: most are its pipeline's own, so those are asked for first. */
async function learnNames(dispatcher: Dispatcher, run: RunShown, known: Map<string, string>): Promise<void> {
  const needed = [...run.inputs, ...run.commits].map((each) => each.dataset_id);
  for (const query of [{ dag: run.dag }, {}]) {
    if (needed.every((id) => known.has(id) || unnamed.has(id))) return;
    const { items } = await listAll<DatasetLine>(dispatcher, ["datasets"], "datasets", query);
    for (const each of items) known.set(each.id, placeOf(each));
  }
  for (const id of needed) if (!known.has(id)) unnamed.add(id);
}

const unnamed = new Set<string>(); // Beyond the bound of the list: asking again would not find them.
const names = new Map<string, string>();

function One({ dispatcher, id }: { dispatcher: Dispatcher; id: string }): JSX.Element {
  const live = useLive(() => look(dispatcher, id, names), [id]);
  useSecond();
  return (
    <>
      {live.value === null && <h1 class="mono">{id}</h1>}
      <Shown live={live} what="the run">
        {({ run, names, checks }) => (
          <>
            <header class="head">
              <div>
                <div class="crumbs">
                  <a href={href(["pipeline", run.dag])}>{run.dag}</a> ·{" "}
                  <a href={href(["runs"], { dag: run.dag, job: run.job })}>{run.job}</a>
                </div>
                <h1>{run.partition_key ?? (run.cursor === null ? run.job : `cursor ${run.cursor}`)}</h1>
                <span class="mono quiet">
                  {run.id} <Copy text={run.id} what="the id" />
                </span>
              </div>
              <div class="right">
                <a class="button" href={href(["why"], { target: run.id })}>
                  Why?
                </a>
                <Actions dispatcher={dispatcher} run={run} />
              </div>
            </header>
            <State run={run} />
            {run.last_error && run.status !== "completed" && (
              <Panel title="Error">
                <pre tabIndex={0} class="block s-failed">
                  {run.last_error}
                </pre>
                {run.traceback && (
                  <details open={run.status === "failed"} style={{ marginTop: "8px" }}>
                    <summary>Traceback</summary>
                    <pre tabIndex={0} class="block">
                      {run.traceback.trimEnd()}
                    </pre>
                  </details>
                )}
              </Panel>
            )}
            <div class="columns">
              <Attempts run={run} />
              <Pieces run={run} names={names} />
            </div>
            <Log dispatcher={dispatcher} run={run} />
            {checks.length > 0 && (
              <Panel title="Quality">
                <ul class="legend">
                  {checks.map((check) => (
                    <li key={check.attempt * 1000 + check.position}>
                      <Badge status={check.passed ? "passed" : check.severity === "warn" ? "warned" : "failed"}>
                        {check.name}
                      </Badge>
                    </li>
                  ))}
                </ul>
              </Panel>
            )}
            {run.output !== null && (
              <Panel title="Result">
                <Tree value={run.output} />
              </Panel>
            )}
          </>
        )}
      </Shown>
    </>
  );
}

function Actions({ dispatcher, run }: { dispatcher: Dispatcher; run: RunShown }): JSX.Element | null {
  const { mayAct } = useApp();
  if (!mayAct || run.superseded?.version) return null; // What no live version has would never run.
  if (run.status === "failed" || run.status === "cancelled")
    return (
      <Confirm
        button="Replay"
        title="Run this again?"
        act={async () => {
          await dispatcher.post(["tasks", run.id, "replay"]);
          return "replayed";
        }}
      >
        It is run again with all its attempts, as soon as limits and pauses allow it.
      </Confirm>
    );
  if (run.status === "pending" || (run.status === "running" && !run.cancel_requested))
    return (
      <Confirm
        button="Cancel"
        yes="Cancel the run"
        title="Cancel this run?"
        danger
        reason
        act={async (reason) => {
          await dispatcher.post(["tasks", run.id, "cancel"], { reason });
          return "cancelled";
        }}
      >
        A pending run ends at once; a running one is asked to stop. Its output will be missing.
      </Confirm>
    );
  return null;
}
