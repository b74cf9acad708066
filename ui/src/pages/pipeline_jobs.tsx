/** The jobs of a pipeline: as a graph that can be narrowed, and as a table that says the same. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { JobLine, VersionShown } from "../dispatcher/answers";
import { amend, href } from "../shell/router";
import { StatusBar } from "../show/badge";
import { Graph, type GraphEdge, type GraphNode } from "../show/graph";
import { groupByPrefix } from "../show/grouping";
import { Head } from "../show/head";
import { neighbours } from "../show/neighbours";
import { Panel } from "../show/states";
import { count, plural } from "../show/text";

const GROUPED_FROM = 60; // Jobs; from there on a graph is drawn in groups unless somebody wants it whole.

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
  const isGrouped = !focus && (query.groups ?? (nodes.length > GROUPED_FROM ? "on" : "off")) !== "off";
  const near = focus ? neighbours(nodes, edges, focus, steps) : { nodes, edges };
  const drawn = isGrouped
    ? groupByPrefix(near.nodes, near.edges, query.groups ?? "", (group) =>
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
          {!focus && nodes.length > 8 && (
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
                <a href={href(["pipeline", shown.dag], { focus: job.name })}>neighbours</a>{" "}
                <a href={href(["why"], { target: `${shown.dag}.${job.name}` })}>why?</a>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}
