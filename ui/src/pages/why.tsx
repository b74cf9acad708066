/** Why is this here, or why is it not running? The chain of events and tasks that leads to a piece of data. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Why, WhyStep } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { go, href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge, Shape } from "../show/badge";
import { staleReasons } from "../show/stale";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, RunLink } from "../show/text";
import { WithDispatcher } from "./pipelines";

export function WhyPage({ query }: { query: Record<string, string> }): JSX.Element {
  return (
    <WithDispatcher title="Why?">
      {(dispatcher) => <Ask dispatcher={dispatcher} target={query.target ?? ""} />}
    </WithDispatcher>
  );
}

function Ask({ dispatcher, target }: { dispatcher: Dispatcher; target: string }): JSX.Element {
  const [text, setText] = useState(target);
  useEffect(() => setText(target), [target]); // Back and forward change the target, too.
  return (
    <>
      <header class="head">
        <h1>Why does it exist, or not?</h1>
      </header>
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          go(["why"], { target: text.trim() });
        }}
      >
        <label class="field" style={{ flexGrow: 1 }}>
          A dataset, a partition as dataset@key, or the id of an event or run
          <input
            data-find
            value={text}
            placeholder="shop.totals@2026-03-01"
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <button type="submit" class="main-action" disabled={!text.trim()}>
          Ask
        </button>
      </form>
      {target ? (
        <Answer key={target} dispatcher={dispatcher} target={target} />
      ) : (
        <Panel>
          <Empty title="Enter a dataset, partition, event or run">
            This page explains why its data exists or is missing.
          </Empty>
        </Panel>
      )}
    </>
  );
}

const VERDICTS: Record<Why["verdict"], string> = {
  there: "It exists.",
  under_way: "It is in progress: wait for it.",
  blocked: "It is blocked and needs your action.",
  unknown: "No event has ever announced it.",
};

function toneOf({ verdict, stale }: Why): string {
  if (verdict === "blocked") return "bad";
  return verdict === "there" && !stale ? "good" : "warn";
}

/** A step tells its kind, and in its text how it went. */
function shapeOf({ kind, text }: WhyStep): string {
  if (kind === "task")
    return (/\b(completed|failed|cancelled|expired|pending)\b/.exec(text)?.[1] ?? "running") as string;
  return { commit: "completed", check: "failed", missing: "failed", event: "pending" }[kind] ?? "archived";
}

function Answer({ dispatcher, target }: { dispatcher: Dispatcher; target: string }): JSX.Element {
  const live = useLive(() => dispatcher.get<Why>(["why"], { target }), [target]);
  useSecond();
  return (
    <Shown live={live} what="the reasons">
      {(why) => (
        <>
          <div class={`said ${toneOf(why)}`}>
            <strong>
              <Badge status={why.stale ? "warned" : why.verdict}>
                {why.stale ? "It exists, and is stale." : VERDICTS[why.verdict]}
              </Badge>
            </strong>
            {staleReasons(why).map((reason) => (
              <span key={reason}>{reason}</span>
            ))}
            {why.blocked_by && <span>{why.blocked_by}</span>}
            {why.do && (
              <span>
                <strong>What to do:</strong> {why.do}
              </span>
            )}
          </div>
          <Panel title="From the source to this data">
            {why.steps.length === 0 ? (
              <Empty title="No events or tasks" />
            ) : (
              <ol class="steps">
                {why.steps.map((step, n) => (
                  <Step key={n} step={step} />
                ))}
              </ol>
            )}
          </Panel>
        </>
      )}
    </Shown>
  );
}

function Step({ step }: { step: WhyStep }): JSX.Element {
  return (
    <li>
      <span class="dot">
        <Shape status={shapeOf(step)} />
      </span>
      <div class="wrap">
        {step.text}
        <div class="quiet">
          {step.kind}
          {step.dataset && (
            <>
              {" "}
              ·{" "}
              <a href={href(["dataset", step.dataset], { partition: step.partition_key })}>
                {step.dataset}
                {step.partition_key && `@${step.partition_key}`}
              </a>
            </>
          )}
          {step.task_id && (
            <>
              {" "}
              · <RunLink id={step.task_id} />
            </>
          )}
        </div>
      </div>
      <span class="second">
        <Ago at={step.at} />
      </span>
    </li>
  );
}
