/** One pipeline: its jobs as a graph with what they are doing, its versions, and the way back. */

import type { JSX } from "preact";
import type { Cutover, DagLine, JobLine, Rebuild, VersionLine, VersionShown } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { listAll } from "../dispatcher/paging";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge, StatusBar } from "../show/badge";
import { Confirm } from "../show/confirm";
import { Graph, type GraphEdge, type GraphNode } from "../show/graph";
import { Head } from "../show/head";
import { stuckText } from "../show/rebuild";
import { Panel, Shown } from "../show/states";
import { Ago, count, plural } from "../show/text";
import { WithDispatcher } from "./pipelines";

export function PipelinePage({ name }: { name: string }): JSX.Element {
  return <WithDispatcher title={name}>{(dispatcher) => <One dispatcher={dispatcher} name={name} />}</WithDispatcher>;
}

const VERSIONS_SHOWN = 20;

interface Looked {
  shown: VersionShown;
  versions: VersionLine[]; // The newest ones.
  older: boolean; // Whether there are more.
  line: DagLine | null;
  rebuild: Rebuild | null;
}

async function look(dispatcher: Dispatcher, name: string): Promise<Looked> {
  const [shown, { versions, next: older }, { items: dags }] = await Promise.all([
    dispatcher.get<VersionShown>(["dags", name]),
    dispatcher.get<{ versions: VersionLine[]; next: string | null }>(["dags", name, "versions"], {
      limit: VERSIONS_SHOWN,
    }),
    // An older dispatcher knows no such filter and gives all, page by page.
    listAll<DagLine>(dispatcher, ["dags"], "dags", { dag: name }),
  ]);
  const line = dags.find((dag) => dag.name === name) ?? null;
  const rebuild =
    line?.next == null ? null : await dispatcher.get<Rebuild>(["dags", name, "rebuild"], { version: line.next });
  return { shown, versions, older: older !== null, line, rebuild };
}

function One({ dispatcher, name }: { dispatcher: Dispatcher; name: string }): JSX.Element {
  const live = useLive(() => look(dispatcher, name), [name]);
  useSecond();
  return (
    <>
      <header class="head">
        <div>
          <div class="crumbs">
            <a href={href(["pipelines"])}>Pipelines</a>
          </div>
          <h1>{name}</h1>
        </div>
        {live.value && (
          <div class="right">
            <Actions dispatcher={dispatcher} looked={live.value} />
          </div>
        )}
      </header>
      <Shown live={live} what="the pipeline">
        {(looked) => (
          <>
            {looked.shown.paused !== null && (
              <div class="said warn">
                Paused{looked.shown.paused && `: ${looked.shown.paused}`}. Running tasks continue; no new tasks are
                started.
              </div>
            )}
            {looked.rebuild && <Progress rebuild={looked.rebuild} />}
            <Panel title="Jobs" right={<a href={href(["runs"], { dag: name })}>all runs</a>}>
              <JobGraph shown={looked.shown} />
            </Panel>
            <JobTable shown={looked.shown} />
            <Versions versions={looked.versions} older={looked.older} />
          </>
        )}
      </Shown>
    </>
  );
}

function Actions({ dispatcher, looked }: { dispatcher: Dispatcher; looked: Looked }): JSX.Element | null {
  const { mayAct } = useApp();
  const { shown, line, rebuild } = looked;
  if (!mayAct) return null;
  const paused = shown.paused !== null;
  return (
    <>
      <Confirm
        button={paused ? "Resume" : "Pause"}
        title={paused ? "Resume this pipeline?" : "Pause this pipeline?"}
        reason={!paused}
        act={async (reason) => {
          await dispatcher.post(
            ["dags", shown.dag, paused ? "resume" : "pause"],
            paused ? {} : { reason: reason ?? "" },
          );
          return paused ? "resumed" : "paused";
        }}
      >
        {paused
          ? "Waiting tasks are started again."
          : "Running tasks continue; no new tasks are started until you resume it."}
      </Confirm>
      {line?.next != null && rebuild && <Activate dispatcher={dispatcher} dag={shown.dag} rebuild={rebuild} />}
      {line?.previous != null && (
        <Confirm
          button={`Roll back to ${line.previous}`}
          title={`Roll back to version ${line.previous}?`}
          danger
          act={async () => {
            const answer = await dispatcher.post<Cutover>(["dags", shown.dag, "rollback"], {
              replaces: line.active,
            });
            const stopped = answer.cancelled + answer.cancel_requested;
            const of = `of version ${answer.replaced}`;
            const also = plural(stopped, `task ${of} was cancelled`, `tasks ${of} were cancelled`);
            return `version ${answer.active} is active${stopped ? `; ${also}` : ""}`;
          }}
        >
          All datasets switch to the data of version {line.previous} at once. Tasks of version {line.active} are
          cancelled.
        </Confirm>
      )}
    </>
  );
}

/** What is not whole takes over only for who says so; the dispatcher is told that it was said. */
function Activate({
  dispatcher,
  dag,
  rebuild,
}: {
  dispatcher: Dispatcher;
  dag: string;
  rebuild: Rebuild;
}): JSX.Element {
  const { version, tasks, status } = rebuild;
  const left = rebuild.remaining + (tasks.pending ?? 0) + (tasks.running ?? 0);
  const lacking = [
    ...(tasks.failed ? [`${count(tasks.failed)} of its tasks failed`] : []),
    ...(left ? [`${plural(left, "task")} left`] : []),
  ].join(", ");
  return (
    <Confirm
      button={`Activate ${version}`}
      title={`Activate version ${version}?`}
      sure={lacking ? "Activate it incomplete" : null}
      act={async () => {
        const force = lacking !== "";
        if (status === "staged" && !force)
          await dispatcher.post(["dags", dag, "versions", String(version), "ready"]);
        const answer = await dispatcher.put<Cutover>(["dags", dag, "active"], { version, force });
        return `version ${answer.active} is active`;
      }}
    >
      All datasets switch at once.{" "}
      {lacking
        ? `The version is incomplete: ${lacking}. Missing data stays missing until it is built.`
        : "The version has caught up."}
    </Confirm>
  );
}

function Progress({ rebuild }: { rebuild: Rebuild }): JSX.Element {
  const done = rebuild.tasks.completed ?? 0;
  const all = Object.values(rebuild.tasks).reduce((a, b) => a + b, 0) + rebuild.remaining;
  return (
    <Panel
      title={`Version ${rebuild.version} is being built`}
      right={
        <Badge status={rebuild.caught_up ? "ready" : rebuild.stuck ? "failed" : "running"}>
          {rebuild.caught_up ? "caught up" : rebuild.stuck ? "stuck" : "building"}
        </Badge>
      }
    >
      <progress max={Math.max(1, all)} value={all ? done : 1} aria-label={`${done} of ${plural(all, "task")}`} />
      <p class="second">
        {count(done)} of {plural(all, "task")} done, in jobs {rebuild.jobs.join(", ") || "none"}
        {rebuild.tasks.failed ? `; ${rebuild.tasks.failed} failed` : ""}
      </p>
      {rebuild.stuck && <p class="s-failed">{stuckText(rebuild)}</p>}
      {rebuild.waits && rebuild.waits.length > 0 && (
        <ul>
          {rebuild.waits.map((wait) => (
            <li key={wait.job}>
              <strong>{wait.job}</strong> {wait.reason}
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function JobGraph({ shown }: { shown: VersionShown }): JSX.Element {
  const names = new Set(shown.jobs.map((job) => job.name));
  const bare = (read: string): string => read.replace(/\[\d+\]$/, "");
  const nodes: GraphNode[] = shown.jobs.map((job) => ({
    id: job.name,
    title: job.name,
    lines: [`${job.runtime} · ${job.operator}`, stateOf(job)],
    href: href(["runs"], { dag: shown.dag, job: job.name }),
    counts: job.tasks,
    class: job.tasks.failed ? "failed" : job.tasks.running ? "running" : "",
  }));
  const edges: GraphEdge[] = [];
  for (const job of shown.jobs)
    for (const read of job.reads) {
      const from = names.has(bare(read)) ? bare(read) : `dataset ${read}`;
      if (!names.has(bare(read)) && !nodes.some((node) => node.id === from))
        nodes.push({
          id: from,
          title: read,
          lines: ["from another pipeline"],
          href: href(["dataset", read]),
          class: "external",
        });
      edges.push({ from, to: job.name, live: (job.tasks.running ?? 0) > 0 });
    }
  return <Graph nodes={nodes} edges={edges} label={`Jobs of ${shown.dag}; the table below has the same content`} />;
}

function stateOf(job: JobLine): string {
  if (job.paused !== null) return "paused";
  const news = (["running", "failed"] as const).filter((status) => job.tasks[status]);
  if (news.length) return news.map((status) => `${count(job.tasks[status]!)} ${status}`).join(", ");
  if (job.hold) return job.hold;
  if (job.tasks.pending) return `${count(job.tasks.pending)} waiting`;
  return job.source ? `source ${job.source}` : job.tasks.completed ? `${count(job.tasks.completed)} done` : "idle";
}

function JobTable({ shown }: { shown: VersionShown }): JSX.Element {
  return (
    <Panel title="Tasks by job" flush>
      <table class="stack">
        <Head columns={["job", "reads", "tasks", "state", "dataset"]} />
        <tbody>
          {shown.jobs.map((job) => (
            <tr key={job.name}>
              <td>
                <a href={href(["runs"], { dag: shown.dag, job: job.name })}>{job.name}</a>
              </td>
              <td class="second wrap">{job.reads.join(", ") || <span class="quiet">a source</span>}</td>
              <td style={{ minWidth: "110px", verticalAlign: "middle" }}>
                <StatusBar counts={job.tasks} label={job.name} />
              </td>
              <td class="wrap">
                {stateOf(job)}
                {job.hold && stateOf(job) !== job.hold && <div class="quiet">{job.hold}</div>}
                {job.rebuilt && <span class="chip">rebuilt</span>}
              </td>
              <td class="nowrap">
                {Array.from({ length: job.outputs }, (_, n) => {
                  const dataset = n ? `${shown.dag}.${job.name}[${n}]` : `${shown.dag}.${job.name}`;
                  return (
                    <span key={dataset}>
                      <a href={href(["dataset", dataset])}>{n ? `[${n}]` : dataset}</a>{" "}
                    </span>
                  );
                })}
                <a href={href(["why"], { target: `${shown.dag}.${job.name}` })}>why?</a>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Versions({ versions, older }: { versions: VersionLine[]; older: boolean }): JSX.Element {
  return (
    <Panel title={older ? `The newest ${versions.length} versions` : "Versions"} flush>
      <table class="stack">
        <Head columns={["version", "state", "deployed", "by", "activated", "content"]} />
        <tbody>
          {versions.map((each) => (
            <tr key={each.version}>
              <td data-name="version">{each.version}</td>
              <td>
                <Badge status={each.status} />
              </td>
              <td data-name="deployed">
                <Ago at={each.created_at} />
              </td>
              <td>{each.created_by}</td>
              <td data-name="activated">
                <Ago at={each.activated_at} />
              </td>
              <td class="mono quiet">{each.content_hash.slice(0, 12)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}
