/** All pipelines. */

import type { ComponentChildren, JSX } from "preact";
import type { PipelineHealth } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { conditionOf, listPipelines, sumUp } from "../dispatcher/health";
import type { Listed } from "../dispatcher/paging";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge, kindOf, Shape } from "../show/badge";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, count, plural } from "../show/text";

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
  return (
    <WithDispatcher title="Pipelines">{(dispatcher) => <AllPipelines dispatcher={dispatcher} />}</WithDispatcher>
  );
}

/** `none`: what is shown where there are no pipelines. */
export function AllPipelines({ dispatcher, none }: { dispatcher: Dispatcher; none?: JSX.Element }): JSX.Element {
  const live = useLive(() => listPipelines(dispatcher), []);
  if (none && live.value?.items.length === 0) return none;
  return (
    <>
      <header class="head">
        <h1>Pipelines</h1>
      </header>
      <Shown live={live} what="pipelines">
        {(listed) => <PipelineList listed={listed} />}
      </Shown>
    </>
  );
}

/** All pipelines at a glance, those that need somebody first. */
function PipelineList({ listed: { items, more } }: { listed: Listed<PipelineHealth> }): JSX.Element {
  useSecond();
  if (items.length === 0)
    return (
      <Panel>
        <Empty title="No pipelines yet">
          Deploy one: <code>qo dag deploy pipeline.yaml</code>
        </Empty>
      </Panel>
    );
  const ranked = [...items].sort((a, b) => rankOf(a) - rankOf(b) || a.name.localeCompare(b.name));
  return (
    <>
      <Sums pipelines={items} />
      <Panel flush>
        <table class="stack">
          <Head columns={["pipeline", "state", "#running", "#waiting", "#failed", "#held", "versions", "data"]} />
          <tbody>
            {ranked.map((each) => (
              <Line key={each.name} pipeline={each} />
            ))}
          </tbody>
        </table>
        {more && <p class="quiet">There are more: {count(items.length)} are listed.</p>}
      </Panel>
    </>
  );
}

const RANKS = ["failed", "late", "held", "paused", "running", "pending"];

function rankOf(each: PipelineHealth): number {
  const rank = RANKS.indexOf(conditionOf(each));
  return rank < 0 ? RANKS.length : rank;
}

function Sums({ pipelines }: { pipelines: PipelineHealth[] }): JSX.Element {
  const sums = sumUp(pipelines);
  const tiles: [name: string, status: string, value: number, path: string[], query: Record<string, string>][] = [
    ["Failed", "failed", sums.failed, ["runs"], { status: "failed" }],
    ["Running", "running", sums.running, ["runs"], { status: "running" }],
    ["Waiting", "pending", sums.waiting, ["runs"], { status: "pending" }],
    ["Late", "late", sums.late, ["datasets"], {}],
    ["Held back", "held", sums.held, ["backpressure"], {}],
  ];
  return (
    <div class="tiles">
      {tiles.map(([name, status, value, path, query]) => (
        <a key={name} class="tile" href={href(path, query)}>
          <span class="name">
            <Shape status={status} /> {name}
          </span>
          <span class={`value ${value ? `s-${kindOf(status)}` : "quiet"}`}>{count(value)}</span>
        </a>
      ))}
      <div class="tile">
        <span class="name">
          <Shape status="staged" /> Being built
        </span>
        <span class="value">{count(sums.building)}</span>
        <span class="note">of {plural(pipelines.length, "pipeline")}</span>
      </div>
    </div>
  );
}

function Line({ pipeline }: { pipeline: PipelineHealth }): JSX.Element {
  const condition = conditionOf(pipeline);
  const number = (name: string, value: number, status: string): JSX.Element => (
    <td class="number" data-name={name}>
      {value ? (
        <a
          href={status ? href(["runs"], { dag: pipeline.name, status }) : href(["backpressure"])}
          class={name === "failed" ? "s-failed" : undefined}
        >
          {count(value)}
        </a>
      ) : (
        <span class="quiet">0</span>
      )}
    </td>
  );
  return (
    <tr>
      <td>
        <a href={href(["pipeline", pipeline.name])}>{pipeline.name}</a>
        <div class="quiet">{plural(pipeline.jobs, "job")}</div>
      </td>
      <td class="wrap">
        <Badge status={condition}>{textOf(pipeline)}</Badge>
        {pipeline.sources_failed > 0 && (
          <div class="s-failed">{plural(pipeline.sources_failed, "source does", "sources do")} not run</div>
        )}
      </td>
      {number("running", pipeline.running, "running")}
      {number("waiting", pipeline.waiting, "pending")}
      {number("failed", pipeline.failed, "failed")}
      {number("held", pipeline.held, "")}
      <td class="nowrap">
        {pipeline.active === null ? "none active" : `${pipeline.active} active`}
        {pipeline.next !== null && (
          <div>
            <Badge status={pipeline.next_status ?? "staged"}>
              {pipeline.next} {pipeline.next_status}
            </Badge>
          </div>
        )}
      </td>
      <td class="wrap">
        <Data pipeline={pipeline} />
      </td>
    </tr>
  );
}

function textOf(pipeline: PipelineHealth): string {
  const condition = conditionOf(pipeline);
  if (pipeline.paused) return `paused: ${pipeline.paused}`;
  const texts: Record<string, string> = { completed: "up to date", pending: "waiting", held: "held back" };
  return texts[condition] ?? condition;
}

const DATASETS_SHOWN = 4;

function Data({ pipeline }: { pipeline: PipelineHealth }): JSX.Element {
  // The oldest first: whoever looks wants to know what did not come.
  const oldest = [...pipeline.published].sort((a, b) => (a.committed_at ?? "").localeCompare(b.committed_at ?? ""));
  if (!oldest.length) return <span class="quiet">publishes nothing</span>;
  return (
    <ul>
      {oldest.slice(0, DATASETS_SHOWN).map((each) => (
        <li key={each.name}>
          <a href={href(["dataset", each.name])}>{each.name}</a>{" "}
          <span class="quiet">{each.committed_at ? <Ago at={each.committed_at} /> : "is empty"}</span>
        </li>
      ))}
      {oldest.length > DATASETS_SHOWN && <li class="quiet">and {oldest.length - DATASETS_SHOWN} more</li>}
    </ul>
  );
}
