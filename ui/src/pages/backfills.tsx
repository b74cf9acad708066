/** Backfills: partitions that are built again, with their progress; and the way to start one. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Backfill, DagLine, VersionShown } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { listAll } from "../dispatcher/paging";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { progressOf, rangeOf } from "../show/backfill";
import { Badge, StatusBar } from "../show/badge";
import { Confirm } from "../show/confirm";
import { Choice } from "../show/filters";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, count, plural } from "../show/text";
import { WithDispatcher } from "./pipelines";

const LISTED = 100;

export function BackfillsPage({ query }: { query: Record<string, string> }): JSX.Element {
  return (
    <WithDispatcher title="Backfills">
      {(dispatcher) => <All dispatcher={dispatcher} dag={query.dag ?? ""} job={query.job ?? ""} />}
    </WithDispatcher>
  );
}

function All({ dispatcher, dag, job }: { dispatcher: Dispatcher; dag: string; job: string }): JSX.Element {
  const { mayAct } = useApp();
  const live = useLive(
    () => dispatcher.get<{ backfills: Backfill[] }>(["backfills"], { dag, limit: LISTED }),
    [dag],
  );
  useSecond();
  return (
    <>
      <header class="head">
        <h1>Backfills</h1>
      </header>
      {mayAct && <Start dispatcher={dispatcher} dag={dag} job={job} />}
      <Shown live={live} what="backfills">
        {({ backfills }) => (
          <Panel flush>
            {backfills.length === 0 ? (
              <Empty title="No backfill was started">
                A backfill builds partitions again that exist, a few at a time.
              </Empty>
            ) : (
              <table class="stack">
                <Head columns={["job", "partitions", "state", "progress", "at once", "started", ""]} />
                <tbody>
                  {backfills.map((each) => (
                    <Line key={each.id} backfill={each} dispatcher={dispatcher} mayAct={mayAct} />
                  ))}
                </tbody>
              </table>
            )}
          </Panel>
        )}
      </Shown>
    </>
  );
}

const STATES = { running: "running", paused: "paused", done: "completed", cancelled: "cancelled" };

function Line({
  backfill,
  dispatcher,
  mayAct,
}: {
  backfill: Backfill;
  dispatcher: Dispatcher;
  mayAct: boolean;
}): JSX.Element {
  const { done, failed, open, total } = progressOf(backfill);
  const name = `${backfill.dag}.${backfill.job}`;
  const act = (verb: string) => async (): Promise<string> => {
    await dispatcher.post(["backfills", backfill.id, verb]);
    return `the backfill was ${{ pause: "paused", resume: "resumed", cancel: "cancelled" }[verb]}`;
  };
  const isOpen = backfill.state === "running" || backfill.state === "paused";
  return (
    <tr>
      <td>
        <a href={href(["pipeline", backfill.dag], { focus: backfill.job })}>{name}</a>
      </td>
      <td class="wrap">
        {rangeOf(backfill)}
        {backfill.missing.length > 0 && (
          <div class="quiet">
            not in its input: {backfill.missing.slice(0, 3).join(", ")}
            {backfill.missing.length > 3 && ` and ${backfill.missing.length - 3} more`}
          </div>
        )}
      </td>
      <td>
        <Badge status={STATES[backfill.state]}>{backfill.state}</Badge>
        {!backfill.live && <div class="quiet">waits until a version has this job again</div>}
      </td>
      <td style={{ minWidth: "150px", verticalAlign: "middle" }}>
        <StatusBar
          counts={{ completed: done, failed, running: open, archived: Math.max(0, total - done - failed - open) }}
          label={name}
        />
        <div class="quiet">
          {count(done)} of {plural(total, "partition")}
          {failed > 0 && (
            <>
              ,{" "}
              <a class="s-failed" href={href(["runs"], { dag: backfill.dag, job: backfill.job, status: "failed" })}>
                {count(failed)} failed
              </a>
            </>
          )}
        </div>
      </td>
      <td class="number" data-name="at once">
        {backfill.at_once}
      </td>
      <td>
        <Ago at={backfill.created_at} /> <span class="quiet">by {backfill.created_by}</span>
      </td>
      <td>
        {mayAct && isOpen && (
          <span class="choices">
            <Confirm
              button={backfill.state === "paused" ? "Resume" : "Pause"}
              title={
                backfill.state === "paused" ? `Resume the backfill of ${name}?` : `Pause the backfill of ${name}?`
              }
              act={act(backfill.state === "paused" ? "resume" : "pause")}
            >
              {backfill.state === "paused"
                ? "It goes on where it was."
                : "Its open tasks go on; no new ones are made."}
            </Confirm>
            <Confirm button="Cancel" title={`Cancel the backfill of ${name}?`} danger act={act("cancel")}>
              Its waiting tasks are cancelled. What was built stays.
            </Confirm>
          </span>
        )}
      </td>
    </tr>
  );
}

/** The form of a new backfill. */
function Start({ dispatcher, dag, job }: { dispatcher: Dispatcher; dag: string; job: string }): JSX.Element {
  const [chosen, setChosen] = useState({ dag, job, from: "", to: "", atOnce: "4" });
  const pipelines = useLive(() => listAll<DagLine>(dispatcher, ["dags"], "dags", {}, 1000), []);
  const version = useLive(
    () => (chosen.dag ? dispatcher.get<VersionShown>(["dags", chosen.dag]) : Promise.resolve(null)),
    [chosen.dag],
  );
  const set = (name: string) => (value: string) => setChosen({ ...chosen, [name]: value });
  const jobs = (version.value?.jobs ?? []).filter((each) => each.activation !== "source").map((each) => each.name);
  const atOnce = Number(chosen.atOnce);
  const isReady = chosen.dag && jobs.includes(chosen.job) && Number.isInteger(atOnce) && atOnce >= 1;
  const key = (label: string, name: "from" | "to"): JSX.Element => (
    <label class="field">
      {label}
      <input value={chosen[name]} placeholder="any" onInput={(event) => set(name)(event.currentTarget.value)} />
    </label>
  );
  return (
    <form class="filters" onSubmit={(event) => event.preventDefault()}>
      <Choice
        label="Pipeline"
        value={chosen.dag}
        any="choose"
        of={pipelines.value?.items.map((each) => each.name) ?? []}
        onChoose={(value) => setChosen({ ...chosen, dag: value, job: "" })}
      />
      <Choice label="Job" value={chosen.job} any="choose" of={jobs} onChoose={set("job")} />
      {key("From key", "from")}
      {key("To key", "to")}
      <label class="field">
        At once
        <input
          type="number"
          min={1}
          max={10000}
          value={chosen.atOnce}
          onInput={(event) => set("atOnce")(event.currentTarget.value)}
        />
      </label>
      <Confirm
        button="Start…"
        yes="Build them again"
        disabled={!isReady}
        title={`Build partitions of ${chosen.dag}.${chosen.job} again?`}
        act={async () => {
          const answer = await dispatcher.post<Backfill>(["backfills"], {
            dag: chosen.dag,
            job: chosen.job,
            from_key: chosen.from.trim() || null,
            to_key: chosen.to.trim() || null,
            at_once: atOnce,
          });
          return `a backfill of ${plural(answer.made + answer.left, "partition")} has begun`;
        }}
      >
        Partitions {chosen.from || "from the first"} to {chosen.to || "the last"}, {plural(atOnce || 0, "task")} at a
        time. The data of now is served until each is replaced; what reads them is built again, too.
      </Confirm>
    </form>
  );
}
