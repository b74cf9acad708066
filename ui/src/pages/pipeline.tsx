/** One pipeline, in four views: jobs, partitions over jobs, runs over time, versions. */

import type { JSX } from "preact";
import type { DagLine, Rebuild, VersionLine, VersionShown } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { listAll } from "../dispatcher/paging";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { namesInOrder } from "../show/order";
import { Shown } from "../show/states";
import { Tabs } from "../show/tabs";
import { PipelineActions } from "./pipeline_actions";
import { GridPanel } from "./pipeline_grid";
import { JobsPanel, JobTable } from "./pipeline_jobs";
import { TimelinePanel } from "./pipeline_timeline";
import { RebuildProgress, Versions } from "./pipeline_versions";
import { WithDispatcher } from "./pipelines";
import { VersionChanges } from "./version_changes";

type Query = Record<string, string>;

const VIEWS: [id: string, name: string][] = [
  ["", "Jobs"],
  ["partitions", "Partitions"],
  ["timeline", "Timeline"],
  ["versions", "Versions"],
];

export function PipelinePage({ name, query }: { name: string; query: Query }): JSX.Element {
  return (
    <WithDispatcher title={name}>
      {(dispatcher) => <One dispatcher={dispatcher} name={name} query={query} />}
    </WithDispatcher>
  );
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

function One({ dispatcher, name, query }: { dispatcher: Dispatcher; name: string; query: Query }): JSX.Element {
  const view = VIEWS.some(([id]) => id === query.view) ? query.view! : "";
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
            <PipelineActions dispatcher={dispatcher} looked={live.value} />
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
            {looked.rebuild && <RebuildProgress rebuild={looked.rebuild} />}
            <Tabs
              label={`Views of ${name}`}
              tabs={VIEWS.map(([id, title]) => ({ title, href: href(["pipeline", name], { view: id }), id }))}
              chosen={view}
            />
            {view === "" && (
              <>
                <JobsPanel shown={looked.shown} query={query} />
                <JobTable shown={looked.shown} />
              </>
            )}
            {view === "partitions" && (
              <GridPanel dispatcher={dispatcher} dag={name} next={looked.line?.next ?? null} query={query} />
            )}
            {view === "timeline" && (
              <TimelinePanel
                dispatcher={dispatcher}
                dag={name}
                jobs={namesInOrder(looked.shown.jobs)}
                query={query}
              />
            )}
            {view === "versions" && looked.rebuild && (
              <VersionChanges dispatcher={dispatcher} serving={looked.shown} number={looked.rebuild.version} />
            )}
            {(view === "" || view === "versions") && <Versions versions={looked.versions} older={looked.older} />}
          </>
        )}
      </Shown>
    </>
  );
}
