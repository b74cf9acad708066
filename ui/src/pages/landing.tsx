/** What opens first: the pipelines, where there are any; else the queue. */

import type { JSX } from "preact";
import { useApp } from "../shell/app";
import { OverviewPage } from "./overview";
import { AllPipelines } from "./pipelines";

export function LandingPage(): JSX.Element {
  const { dispatcher } = useApp();
  if (dispatcher === null) return <OverviewPage />;
  return <AllPipelines dispatcher={dispatcher} none={<OverviewPage />} />;
}
