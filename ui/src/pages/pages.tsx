/** Which page a route shows. */

import type { JSX } from "preact";
import { useEffect, useErrorBoundary, useRef } from "preact/hooks";
import { Problem, problemOf } from "../s3/problem";
import { Frame } from "../shell/frame";
import { type Route, useRoute } from "../shell/router";
import { Failure } from "../show/states";
import { BackfillsPage } from "./backfills";
import { BackpressurePage } from "./backpressure";
import { DatasetPage } from "./dataset";
import { DatasetsPage } from "./datasets";
import { FailuresPage } from "./failures";
import { LandingPage } from "./landing";
import { LineagePage } from "./lineage";
import { OverviewPage } from "./overview";
import { PipelinePage } from "./pipeline";
import { PipelinesPage } from "./pipelines";
import { QualityPage } from "./quality";
import { RunPage } from "./run";
import { RunsPage } from "./runs";
import { SchedulesPage } from "./schedules";
import { ShardsPage } from "./shards";
import { TaskPage } from "./task";
import { TasksPage } from "./tasks";
import { WhyPage } from "./why";
import { WorkerPage } from "./worker";
import { WorkersPage } from "./workers";

export function Pages(): JSX.Element {
  const route = useRoute();
  const at = route.path[0] ?? "";
  const title = ["qo", ...route.path].join(" · ");
  const seen = useRef(title);
  useEffect(() => {
    document.title = title;
    if (seen.current === title) return;
    seen.current = title;
    scrollTo(0, 0);
    // Whoever goes by keyboard goes on from the new page, not from a link that may be gone.
    document.getElementById("content")?.focus({ preventScroll: true });
  }, [title]);
  return (
    <Frame at={at}>
      <div class="page" key={route.path.join("/")}>
        <Unbroken>{pageOf(at, route)}</Unbroken>
      </div>
    </Frame>
  );
}

/** A page that cannot be drawn says so, and leaves the way to the others open. */
function Unbroken({ children }: { children: JSX.Element }): JSX.Element {
  const [error] = useErrorBoundary();
  if (error === undefined) return children;
  const todo = "Please report it, with the address of this page. The other pages are not affected.";
  return <Failure problem={new Problem("wrong", `This page cannot be shown: ${problemOf(error).message}`, todo)} />;
}

function pageOf(at: string, { path, query }: Route): JSX.Element {
  const name = path[1];
  switch (at) {
    case "":
      return <LandingPage />;
    case "queue":
      return <OverviewPage />;
    case "tasks":
      return <TasksPage query={query} />;
    case "failures":
      return <FailuresPage query={query} />;
    case "shards":
      return <ShardsPage query={query} />;
    case "workers":
      return <WorkersPage />;
    case "schedules":
      return <SchedulesPage />;
    case "pipelines":
      return <PipelinesPage />;
    case "datasets":
      return <DatasetsPage />;
    case "runs":
      return <RunsPage query={query} />;
    case "why":
      return <WhyPage query={query} />;
    case "quality":
      return <QualityPage query={query} />;
    case "backfills":
      return <BackfillsPage query={query} />;
    case "backpressure":
      return <BackpressurePage />;
  }
  if (name) {
    if (at === "task") return <TaskPage id={name} query={query} />;
    if (at === "worker") return <WorkerPage id={name} />;
    if (at === "pipeline") return <PipelinePage name={name} query={query} />;
    if (at === "dataset") return <DatasetPage name={name} query={query} />;
    if (at === "lineage") return <LineagePage name={name} query={query} />;
    if (at === "run") return <RunPage id={name} />;
  }
  return (
    <>
      <h1>Page not found</h1>
      <p>
        <a href="#/">Go to the overview</a>
      </p>
    </>
  );
}
