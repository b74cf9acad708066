/** What opens first: the pipelines, where there are any; else the queue. */

import type { JSX } from "preact";
import type { Dispatcher } from "../dispatcher/client";
import { listPipelines } from "../dispatcher/health";
import { useApp } from "../shell/app";
import { useLive } from "../shell/ticker";
import { Shown } from "../show/states";
import { OverviewPage } from "./overview";
import { PipelineList } from "./pipelines";

export function LandingPage(): JSX.Element {
  const { dispatcher } = useApp();
  return dispatcher === null ? <OverviewPage /> : <First dispatcher={dispatcher} />;
}

function First({ dispatcher }: { dispatcher: Dispatcher }): JSX.Element {
  const live = useLive(() => listPipelines(dispatcher), []);
  if (live.value !== null && live.value.items.length === 0) return <OverviewPage />;
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
