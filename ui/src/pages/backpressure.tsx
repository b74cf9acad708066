/** What is held back and why, how full queues and jobs are, and how the sources are. */

import type { JSX } from "preact";
import { formatDuration } from "../core/duration";
import { seconds } from "../core/instant";
import type { HeldAnswer, HeldJob, PressureTarget, QueueLine, SourceLine } from "../dispatcher/answers";
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

function key(target: PressureTarget): string {
  return `${target.kind} ${target.name}`;
}

function note(queue: PressureTarget): void {
  const seen = depths.get(key(queue)) ?? { times: [], values: [] };
  const at = seconds(queue.measured_at) ?? 0;
  if (seen.times.at(-1) !== at) {
    seen.times.push(at);
    seen.values.push(queue.depth);
    if (seen.times.length > KEPT) {
      seen.times.shift();
      seen.values.shift();
    }
  }
  depths.set(key(queue), seen);
}

function All({ dispatcher }: { dispatcher: Dispatcher }): JSX.Element {
  const live = useLive(async () => {
    const [answer, listed, { items: sources, more }] = await Promise.all([
      dispatcher.get<HeldAnswer>(["held"]),
      dispatcher.get<{ queues: QueueLine[] }>(["queues"]),
      listAll<SourceLine>(dispatcher, ["sources"], "sources"),
    ]);
    answer.targets.forEach(note);
    const queues = new Map(listed.queues.map((each) => [each.name, each]));
    return { queues, targets: answer.targets, held: answer.held, moreHeld: answer.more, sources, more };
  }, []);
  useSecond();
  return (
    <>
      <header class="head">
        <h1>Backpressure</h1>
      </header>
      <Shown live={live} what="queues">
        {({ queues, targets, held, moreHeld, sources, more }) => (
          <>
            <Held held={held} />
            {moreHeld && <p class="quiet">Only the first {count(held.length)} are shown.</p>}
            <div class="columns">
              {targets.map((target) => (
                <Target
                  key={key(target)}
                  target={target}
                  queue={target.kind === "queue" ? queues.get(target.name) : undefined}
                />
              ))}
            </div>
            {targets.length === 0 && (
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

function Held({ held }: { held: HeldJob[] }): JSX.Element {
  return (
    <Panel title="Held back" flush>
      {held.length === 0 ? (
        <Empty title="Nothing is held back" />
      ) : (
        <table class="stack">
          <Head columns={["job", "kind", "#waiting", "since", "why", "goes on when"]} />
          <tbody>
            {held.map((each) => (
              <tr key={each.edition_id}>
                <td>
                  {each.dag}.{each.job}
                  {!each.active && <span class="chip">version {each.version}</span>}
                </td>
                <td>
                  {each.kind ?? "job"}
                  {each.mode === "coalesce" && <span class="chip">coalesces</span>}
                </td>
                <td class="number">{each.waiting ? count(each.waiting) : ""}</td>
                <td>
                  <Ago at={each.since} />
                </td>
                <td class="wrap">{each.reason}</td>
                <td class="wrap">{each.next}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

function threshold(value: string, most: string | null): string {
  return most === null ? value : `${value} of at most ${most}`;
}

function Target({ target, queue }: { target: PressureTarget; queue: QueueLine | undefined }): JSX.Element {
  const seen = depths.get(key(target))!;
  const oldest = target.depth ? formatDuration(target.oldest_s) : "none";
  return (
    <Panel
      title={target.kind === "job" ? `job ${target.name}` : target.name}
      right={
        <Badge status={target.tripped_at || queue?.unserved ? "high" : "normal"}>
          {queue?.unserved ? "no worker" : target.tripped_at ? "pressure: producers wait" : "no pressure"}
        </Badge>
      }
    >
      <dl class="facts">
        <dt>Waiting</dt>
        <dd>{threshold(count(target.depth), target.depth_max === null ? null : count(target.depth_max))}</dd>
        <dt>Oldest</dt>
        <dd>{threshold(oldest, target.age_max_s === null ? null : formatDuration(target.age_max_s))}</dd>
        {queue && queue.runtime !== queue.name && (
          <>
            <dt>Runtime</dt>
            <dd>{queue.runtime ?? "none any more"}</dd>
          </>
        )}
        {queue?.unserved && (
          <>
            <dt>Workers</dt>
            <dd>{queue.unserved}</dd>
          </>
        )}
        {target.reason && (
          <>
            <dt>Why</dt>
            <dd>{target.reason}</dd>
            <dt>Clears when</dt>
            <dd>{target.clears}</dd>
          </>
        )}
        <dt>Measured</dt>
        <dd>
          <Ago at={target.measured_at} />
        </dd>
      </dl>
      {seen.times.length > 1 && (
        <Chart
          times={seen.times}
          series={[{ name: "waiting", colour: target.tripped_at ? "--failed" : "--accent", values: seen.values }]}
          height={90}
          label={`Tasks waiting in ${target.name} since this page was opened`}
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
                <td>
                  <Badge status={each.paused !== null ? "paused" : each.held !== null ? "held" : each.state} />
                </td>
                <td>{each.kind}</td>
                <td>
                  <Ago at={each.heard_at} />
                </td>
                <td class="number">{each.restarts || ""}</td>
                <td class="wrap">{each.paused ?? each.held ?? each.last_error ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}
