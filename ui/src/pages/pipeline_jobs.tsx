/** The jobs of a pipeline: as a graph that can be narrowed, and as a table that says the same. */

import { Fragment, type JSX } from "preact";
import { useState } from "preact/hooks";
import type { JobLine, VersionShown } from "../dispatcher/answers";
import { amend, href } from "../shell/router";
import { StatusBar } from "../show/badge";
import { Graph, type GraphEdge, type GraphNode } from "../show/graph";
import { declaredGroups, drawGroups } from "../show/grouping";
import { Head } from "../show/head";
import { neighbours } from "../show/neighbours";
import { Panel } from "../show/states";
import { count, plural } from "../show/text";

// Jobs; from there on a graph is drawn in groups unless somebody wants it whole.
const GROUPED_FROM = 60;
const GROUPED_FROM_IF_DECLARED = 12;

interface Chosen {
  focus?: string | undefined; // Only what is near this job.
  steps?: string | undefined; // How near.
  groups?: string | undefined; // "off": every job; "on", or a group that is open.
}

export function JobsPanel({ shown, query }: { shown: VersionShown; query: Chosen }): JSX.Element {
  const { nodes, edges } = graphOf(shown);
  const set = (change: Chosen): void => amend(["pipeline", shown.dag], { ...query, ...change });
  const focus = nodes.some((each) => each.id === query.focus) ? query.focus! : "";
  const steps = Number(query.steps ?? 1) || 1;
  const isDeclared = shown.jobs.some((job) => job.group);
  const from = isDeclared ? GROUPED_FROM_IF_DECLARED : GROUPED_FROM;
  const isGrouped = !focus && (query.groups ?? (nodes.length > from ? "on" : "off")) !== "off";
  const near = focus ? neighbours(nodes, edges, focus, steps) : { nodes, edges };
  const drawn = isGrouped
    ? drawGroups(near.nodes, near.edges, query.groups ?? "", (group) =>
        href(["pipeline", shown.dag], { ...query, groups: group }),
      )
    : near;
  return (
    <Panel
      title={focus ? `Jobs near ${focus}` : "Jobs"}
      right={
        <span class="choices">
          <Finder names={nodes.map((each) => each.id)} value={focus} onChoose={(name) => set({ focus: name })} />
          {focus && (
            <label class="inline">
              steps{" "}
              <select value={String(steps)} onChange={(event) => set({ steps: event.currentTarget.value })}>
                {["1", "2", "3", "99"].map((each) => (
                  <option key={each} value={each}>
                    {each === "99" ? "all" : each}
                  </option>
                ))}
              </select>
            </label>
          )}
          {!focus && (isDeclared || nodes.length > 8) && (
            <button type="button" aria-pressed={isGrouped} onClick={() => set({ groups: isGrouped ? "off" : "on" })}>
              groups
            </button>
          )}
          <a href={href(["runs"], { dag: shown.dag })}>all runs</a>
        </span>
      }
    >
      <Graph
        nodes={drawn.nodes.map((each) => (each.id === focus ? { ...each, class: `here ${each.class}` } : each))}
        edges={drawn.edges}
        label={`Jobs of ${shown.dag}; the table below has the same content`}
      />
      {focus && (
        <p class="quiet">
          {plural(drawn.nodes.length, "job")} of {count(nodes.length)}.{" "}
          <a href={href(["pipeline", shown.dag])}>Show all</a>
        </p>
      )}
    </Panel>
  );
}

/** A field that finds a job by a part of its name. */
function Finder({
  names,
  value,
  onChoose,
}: {
  names: string[];
  value: string;
  onChoose: (name: string) => void;
}): JSX.Element {
  const [typed, setTyped] = useState<string | null>(null);
  const text = typed ?? value;
  const found = names.find((each) => each === text) ?? names.find((each) => text && each.includes(text));
  return (
    <>
      <input
        data-find
        aria-label="Find a job"
        placeholder="find a job (f)"
        list="jobs"
        size={18}
        value={text}
        aria-invalid={text !== "" && !found}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onChange={() => {
          setTyped(null);
          onChoose(found ?? "");
        }}
      />
      <datalist id="jobs">
        {names.map((each) => (
          <option key={each} value={each} />
        ))}
      </datalist>
    </>
  );
}

function graphOf(shown: VersionShown): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const names = new Set(shown.jobs.map((job) => job.name));
  const bare = (read: string): string => read.replace(/\[\d+\]$/, "");
  const nodes: GraphNode[] = shown.jobs.map((job) => ({
    id: job.name,
    group: job.group ?? null,
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
  return { nodes, edges };
}

function stateOf(job: JobLine): string {
  if (job.paused !== null) return "paused";
  const news = (["running", "failed"] as const).filter((status) => job.tasks[status]);
  if (news.length) return news.map((status) => `${count(job.tasks[status]!)} ${status}`).join(", ");
  if (job.hold) return job.hold;
  if (job.tasks.pending) return `${count(job.tasks.pending)} waiting`;
  return job.source ? `source ${job.source}` : job.tasks.completed ? `${count(job.tasks.completed)} done` : "idle";
}

export function JobTable({ shown }: { shown: VersionShown }): JSX.Element {
  return (
    <Panel title="Tasks by job" flush>
      <table class="stack">
        <Head columns={["job", "reads", "tasks", "state", "dataset"]} />
        <tbody>
          {inGroups(shown.jobs).map(([group, jobs]) => (
            <Fragment key={group}>
              {group && <GroupRow group={group} jobs={jobs} />}
              {jobs.map((job) => (
                <JobRow key={job.name} shown={shown} job={job} />
              ))}
            </Fragment>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

/** Jobs by group, those without one last. */
function inGroups(jobs: JobLine[]): [group: string, jobs: JobLine[]][] {
  const byName = new Map(jobs.map((job) => [job.name, job]));
  const groups = declaredGroups(jobs.map((job) => ({ id: job.name, group: job.group })));
  const grouped = [...groups].map(([group, names]): [string, JobLine[]] => [
    group,
    names.map((name) => byName.get(name)!),
  ]);
  const others = jobs.filter((job) => !job.group);
  if (grouped.length === 0) return [["", others]];
  return others.length > 0 ? [...grouped, ["in no group", others]] : grouped;
}

function GroupRow({ group, jobs }: { group: string; jobs: JobLine[] }): JSX.Element {
  const sum = (status: string): number => jobs.reduce((all, job) => all + (job.tasks[status] ?? 0), 0);
  const news = (["running", "failed", "pending"] as const).filter((status) => sum(status) > 0);
  return (
    <tr class="group">
      <th scope="colgroup" colSpan={5}>
        {group}{" "}
        <span class="quiet">
          {[plural(jobs.length, "job"), ...news.map((status) => `${count(sum(status))} ${status}`)].join(", ")}
        </span>
      </th>
    </tr>
  );
}

function JobRow({ shown, job }: { shown: VersionShown; job: JobLine }): JSX.Element {
  return (
    <tr>
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
        <a href={href(["pipeline", shown.dag], { focus: job.name })}>neighbours</a>{" "}
        <a href={href(["why"], { target: `${shown.dag}.${job.name}` })}>why?</a>
      </td>
    </tr>
  );
}
