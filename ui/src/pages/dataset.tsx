/** One dataset: its generations and which is current, its partitions, commits and events. */

import type { JSX } from "preact";
import type { Commit, DatasetShown, EventLine, Partition } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Heatmap } from "../show/heatmap";
import { staleReasons, staleTitle } from "../show/stale";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, bytes, plural, RunLink } from "../show/text";
import { Commits, Events } from "./dataset_books";
import { ColumnsPanel } from "./dataset_columns";
import { Generations } from "./dataset_generations";
import { DataPanel } from "./dataset_rows";
import { TrendPanel } from "./dataset_trend";
import { WithDispatcher } from "./pipelines";

export function DatasetPage({ name, query }: { name: string; query: Record<string, string> }): JSX.Element {
  return (
    <WithDispatcher title={name}>
      {(dispatcher) => <One dispatcher={dispatcher} name={name} query={query} />}
    </WithDispatcher>
  );
}

const PARTITIONS_MAX = 1000;

interface Looked {
  shown: DatasetShown;
  partitions: Partition[];
  more: boolean;
  commits: Commit[];
  events: EventLine[];
}

async function look(dispatcher: Dispatcher, name: string, partition: string, generation: string): Promise<Looked> {
  const chosen = { generation_id: generation || null };
  const [shown, found, { commits }, { events }] = await Promise.all([
    dispatcher.get<DatasetShown>(["datasets", name]),
    dispatcher
      .get<{ partitions: Partition[]; next: string | null }>(["datasets", name, "partitions"], {
        limit: PARTITIONS_MAX,
        ...chosen,
      })
      .catch(() => ({ partitions: [], next: null })), // Without a current generation there are none.
    dispatcher
      .get<{ commits: Commit[] }>(["datasets", name, "commits"], { limit: 20, partition_key: partition, ...chosen })
      .catch(() => ({ commits: [] })),
    dispatcher.get<{ events: EventLine[] }>(["datasets", name, "events"], { limit: 20, partition_key: partition }),
  ]);
  return { shown, partitions: found.partitions, more: found.next !== null, commits, events };
}

function One({
  dispatcher,
  name,
  query,
}: {
  dispatcher: Dispatcher;
  name: string;
  query: Record<string, string>;
}): JSX.Element {
  const [partition, generation] = [query.partition ?? "", query.generation ?? ""];
  const live = useLive(() => look(dispatcher, name, partition, generation), [name, partition, generation]);
  useSecond();
  return (
    <>
      <header class="head">
        <div>
          <div class="crumbs">
            <a href={href(["datasets"])}>Datasets</a>
            {live.value && (
              <>
                {" "}
                · <a href={href(["pipeline", live.value.shown.dataset.dag])}>{live.value.shown.dataset.dag}</a>
              </>
            )}
          </div>
          <h1>
            {name}
            {live.value?.shown.dataset.name && live.value.shown.dataset.name !== name && (
              <span class="quiet"> published as {live.value.shown.dataset.name}</span>
            )}
          </h1>
        </div>
        <div class="right">
          <a class="button" href={href(["why"], { target: partition ? `${name}@${partition}` : name })}>
            Why?
          </a>
          <a class="button" href={href(["quality"], { dataset: name })}>
            Quality
          </a>
          {live.value && (
            <a
              class="button"
              href={href(["pipeline", live.value.shown.dataset.dag], { focus: live.value.shown.dataset.job })}
            >
              Neighbours
            </a>
          )}
          {partition && (
            <a class="button" href={href(["lineage", name], { partition })}>
              Lineage
            </a>
          )}
        </div>
      </header>
      <Shown live={live} what="the dataset">
        {(looked) => (
          <>
            {looked.shown.sinks?.map((each) => (
              <div class={each.error ? "said warn" : "said"} key={each.name}>
                {each.text}
              </div>
            ))}
            {looked.shown.freshness?.map((each) => (
              <div class={each.late_since ? "said warn" : "said good"} key={each.text}>
                {each.text}
              </div>
            ))}
            <Generations name={name} shown={looked.shown} chosen={generation} />
            <Panel
              title={staleTitle(looked.partitions.length, looked.more, generation ? null : looked.shown.stale)}
              right={partition && <a href={href(["dataset", name])}>all partitions</a>}
            >
              {looked.partitions.length === 0 ? (
                <Empty title="No partition is committed">
                  Nothing was written yet, or the dataset follows a cursor.
                </Empty>
              ) : (
                <Heatmap
                  dataset={name}
                  partitions={looked.partitions}
                  chosen={partition}
                  complete={!looked.more && !generation}
                />
              )}
            </Panel>
            {partition && (
              <Chosen
                partition={looked.partitions.find((each) => each.partition_key === partition) ?? null}
                name={partition}
                dataset={name}
              />
            )}
            <DataPanel
              dispatcher={dispatcher}
              name={name}
              partition={partition}
              revision={looked.commits[0]?.revision ?? 0}
            />
            {looked.shown.columns && looked.shown.columns.length > 0 && (
              <ColumnsPanel
                dispatcher={dispatcher}
                name={name}
                columns={looked.shown.columns}
                partition={partition}
                revision={looked.commits[0]?.revision ?? 0}
              />
            )}
            <TrendPanel
              dispatcher={dispatcher}
              name={name}
              columns={(looked.shown.columns ?? []).map((each) => each.name)}
              query={query}
            />
            <div class="columns">
              <Commits name={name} commits={looked.commits} partition={partition} />
              <Events shown={looked.shown} events={looked.events} partition={partition} />
            </div>
          </>
        )}
      </Shown>
    </>
  );
}

function Chosen({
  partition,
  name,
  dataset,
}: {
  partition: Partition | null;
  name: string;
  dataset: string;
}): JSX.Element {
  if (!partition)
    return (
      <div class="said warn">
        <strong>{name} is not committed.</strong>
        <a href={href(["why"], { target: `${dataset}@${name}` })}>Why not?</a>
      </div>
    );
  return (
    <Panel title={`Partition ${name}`}>
      <dl class="facts">
        <dt>Committed</dt>
        <dd>
          <Ago at={partition.committed_at} />, revision {partition.revision}, by <RunLink id={partition.task_id} />
        </dd>
        <dt>Holds</dt>
        <dd>
          {partition.rows !== null && `${plural(partition.rows, "row")}, `}
          {bytes(partition.bytes)}, {plural(partition.files, "file")}
        </dd>
        {partition.stale && (
          <>
            <dt>Stale</dt>
            <dd>
              {staleReasons(partition).join("; ")}{" "}
              <a href={href(["why"], { target: `${dataset}@${name}` })}>What refreshes it?</a>
            </dd>
          </>
        )}
        {partition.location && (
          <>
            <dt>Where</dt>
            <dd class="mono">{partition.location}</dd>
          </>
        )}
      </dl>
    </Panel>
  );
}
