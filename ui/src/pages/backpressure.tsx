/** How full the queues of pipelines are, whom that holds back, and how the sources are. */

import type { JSX } from "preact";
import { formatDuration } from "../core/duration";
import { seconds } from "../core/instant";
import type { QueueLine, SourceLine } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { listAll } from "../dispatcher/paging";
import { href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Chart } from "../show/chart";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, count } from "../show/text";
import { WithDispatcher } from "./pipelines";

export function BackpressurePage(): JSX.Element {
  return <WithDispatcher title="Backpressure">{(dispatcher) => <All dispatcher={dispatcher} />}</WithDispatcher>;
}

// How deep each queue was, since the page was opened: the dispatcher tells only the last measurement.
const depths = new Map<string, { times: number[]; values: number[] }>();
const KEPT = 720;

function note(queue: QueueLine): void {
  const seen = depths.get(queue.name) ?? { times: [], values: [] };
  const at = seconds(queue.measured_at) ?? 0;
  if (seen.times.at(-1) !== at) {
    seen.times.push(at);
    seen.values.push(queue.depth);
    if (seen.times.length > KEPT) {
      seen.times.shift();
      seen.values.shift();
    }
  }
  depths.set(queue.name, seen);
}

function All({ dispatcher }: { dispatcher: Dispatcher }): JSX.Element {
  const live = useLive(async () => {
    const [{ queues }, { items: sources, more }] = await Promise.all([
      dispatcher.get<{ queues: QueueLine[] }>(["queues"]),
      listAll<SourceLine>(dispatcher, ["sources"], "sources"),
    ]);
    queues.forEach(note);
    return { queues, sources, more };
  }, []);
  useSecond();
  return (
    <>
      <header class="head">
        <h1>Backpressure</h1>
      </header>
      <Shown live={live} what="queues">
        {({ queues, sources, more }) => (
          <>
            <div class="columns">
              {queues.map((queue) => (
                <Queue key={queue.name} queue={queue} />
              ))}
            </div>
            {queues.length === 0 && (
              <Panel>
                <Empty title="No queue was measured yet">
                  Queues appear when a pipeline has jobs for a runtime.
                </Empty>
              </Panel>
            )}
            <Sources sources={sources} />
            {more && <p class="quiet">Only the first {count(sources.length)} sources are shown.</p>}
          </>
        )}
      </Shown>
    </>
  );
}

function Queue({ queue }: { queue: QueueLine }): JSX.Element {
  const seen = depths.get(queue.name)!;
  return (
    <Panel
      title={queue.name}
      right={
        <Badge status={queue.tripped_at || queue.unserved ? "high" : "normal"}>
          {queue.unserved ? "no worker" : queue.tripped_at ? "pressure: producers wait" : "no pressure"}
        </Badge>
      }
    >
      <dl class="facts">
        <dt>Waiting</dt>
        <dd>{count(queue.depth)}</dd>
        <dt>Oldest</dt>
        <dd>{queue.depth ? formatDuration(queue.oldest_s) : "none"}</dd>
        {queue.runtime !== queue.name && (
          <>
            <dt>Runtime</dt>
            <dd>{queue.runtime ?? "none any more"}</dd>
          </>
        )}
        {queue.unserved && (
          <>
            <dt>Workers</dt>
            <dd>{queue.unserved}</dd>
          </>
        )}
        {queue.reason && (
          <>
            <dt>Why</dt>
            <dd>{queue.reason}</dd>
          </>
        )}
        <dt>Measured</dt>
        <dd>
          <Ago at={queue.measured_at} />
        </dd>
      </dl>
      {seen.times.length > 1 && (
        <Chart
          times={seen.times}
          series={[{ name: "waiting", colour: queue.tripped_at ? "--failed" : "--accent", values: seen.values }]}
          height={90}
          label={`Tasks waiting in ${queue.name} since this page was opened`}
        />
      )}
    </Panel>
  );
}

function Sources({ sources }: { sources: SourceLine[] }): JSX.Element {
  return (
    <Panel title="Sources" flush>
      {sources.length === 0 ? (
        <Empty title="No live sources" />
      ) : (
        <table class="stack">
          <Head columns={["source", "state", "kind", "heard", "#restarts", "note"]} />
          <tbody>
            {sources.map((each) => (
              <tr key={each.edition_id}>
                <td>
                  <a href={href(["dataset", `${each.dag}.${each.job}`])}>
                    {each.dag}.{each.job}
                  </a>
                  {!each.active && <span class="chip">version {each.version}</span>}
                </td>
                <td>{each.paused !== null ? <Badge status="paused" /> : <Badge status={each.state} />}</td>
                <td>{each.kind}</td>
                <td>
                  <Ago at={each.heard_at} />
                </td>
                <td class="number">{each.restarts || ""}</td>
                <td class="wrap">{each.paused ?? each.last_error ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}
