/** The frame around every page: where one is, where one can go, and how fresh it is. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { formatDuration } from "../core/duration";
import { plural } from "../show/text";
import { useApp } from "./app";
import { Keyboard } from "./keyboard";
import { Notice } from "./notice";
import { href } from "./router";
import { Search, SearchButton } from "./search";
import { currentTheme, switchTheme } from "./theme";
import { PERIOD_S, ticker, useSecond } from "./ticker";

type Place = [name: string, path: string[], also: string[]];

const QUEUE: Place[] = [
  ["Overview", ["queue"], ["queue"]],
  ["Tasks", ["tasks"], ["tasks", "task"]],
  ["Failures", ["failures"], ["failures"]],
  ["Shards", ["shards"], ["shards"]],
  ["Workers", ["workers"], ["workers", "worker"]],
  ["Schedules", ["schedules"], ["schedules"]],
];
const PIPELINES: Place[] = [
  ["Pipelines", ["pipelines"], ["pipelines", "pipeline"]],
  ["Datasets", ["datasets"], ["datasets", "dataset", "lineage"]],
  ["Runs", ["runs"], ["runs", "run"]],
  ["Why?", ["why"], ["why"]],
  ["Quality", ["quality"], ["quality"]],
  ["Backfills", ["backfills"], ["backfills"]],
  ["Backpressure", ["backpressure"], ["backpressure"]],
];

export function Frame({ at, children }: { at: string; children: ComponentChildren }): JSX.Element {
  const { config, dispatcher } = useApp();
  const here = at || (dispatcher ? "pipelines" : "queue"); // What opens first.
  const links = (places: Place[]): JSX.Element[] =>
    places.map(([name, path, also]) => (
      <a key={name} href={href(path)} {...(also.includes(here) ? { "aria-current": "page" as const } : {})}>
        {name}
      </a>
    ));
  // On a phone the places lie in a row that scrolls: show where one is.
  // Whenever one goes elsewhere.
  useEffect(() => {
    document.querySelector(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [at]);
  const queue = (
    <nav class="nav" aria-label="Queue">
      <h2>Queue</h2>
      <Chooser />
      {links(QUEUE)}
    </nav>
  );
  const pipelines = (
    <nav class="nav" aria-label="Pipelines">
      <h2>Pipelines</h2>
      {links(dispatcher ? PIPELINES : PIPELINES.slice(0, 1))}
    </nav>
  );
  return (
    <div class="frame">
      <button type="button" class="skip" onClick={() => document.getElementById("content")?.focus()}>
        Skip to the content
      </button>
      <header class="side">
        <a class="brand" href="#/">
          qo <small>{config.prefix ? `${config.bucket}/${config.prefix.slice(0, -1)}` : config.bucket}</small>
        </a>
        {dispatcher && <SearchButton />}
        {dispatcher ? (
          <>
            {pipelines}
            {queue}
          </>
        ) : (
          <>
            {queue}
            {pipelines}
          </>
        )}
        <Freshness />
      </header>
      <main class="main" id="content" tabIndex={-1}>
        {children}
      </main>
      <Notice />
      <Keyboard />
      {dispatcher && <Search dispatcher={dispatcher} />}
    </div>
  );
}

/** Which queue: the first, or that of a runtime of pipelines. */
function Chooser(): JSX.Element | null {
  const { queues, chosen, config } = useApp();
  if (!queues.length && !chosen) return null;
  const all = queues.includes(chosen) || !chosen ? queues : [...queues, chosen];
  return (
    <select
      class="chooser"
      aria-label="Queue"
      value={chosen}
      onChange={(event) => {
        location.hash = href([], { queue: event.currentTarget.value });
      }}
    >
      <option value="">{config.prefix ? config.prefix.slice(0, -1) : config.bucket}</option>
      {all.map((each) => (
        <option key={each} value={each}>
          {each.slice("queues/".length, -1)}
        </option>
      ))}
    </select>
  );
}

function Freshness(): JSX.Element {
  const { bucket, dispatcher, config, mayAct } = useApp();
  const [, again] = useState(0);
  useSecond();
  useEffect(() => ticker.watch(() => again((n) => n + 1)), []);
  const age = ticker.lastRound === null ? null : (performance.now() - ticker.lastRound) / 1000;
  const state = ticker.paused ? "off" : ticker.busy ? "busy" : "";
  return (
    <div class="side-foot">
      <span class="nowrap wide">
        <span class={`pulse ${state}`} />{" "}
        {ticker.paused ? "refresh is off" : age === null ? "loading" : `refreshed ${formatDuration(age)} ago`}
      </span>
      <span class="wide">{plural(bucket.requests + (dispatcher?.requests ?? 0), "request")} by this page</span>
      <span class="nowrap">
        <button
          type="button"
          class="plain"
          title={`Refreshes every ${PERIOD_S} s while this tab is visible (key p)`}
          onClick={() => ticker.toggle()}
        >
          {ticker.paused ? "resume" : "pause"}
        </button>
        <button
          type="button"
          class="plain"
          title="Light or dark (key l)"
          onClick={() => {
            switchTheme();
            again((n) => n + 1);
          }}
        >
          {currentTheme() === "dark" ? "light" : "dark"}
        </button>
        <button
          type="button"
          class="plain wide"
          title="All keys"
          onClick={() => dispatchEvent(new KeyboardEvent("keydown", { key: "?" }))}
        >
          keys
        </button>
      </span>
      <span class="wide">
        {config.version && `qo ${config.version}, `}
        {mayAct ? "read and write" : "read-only"}
      </span>
    </div>
  );
}
