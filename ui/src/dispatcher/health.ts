/** All pipelines with their health; from a dispatcher of before, without what it does not count. */

import { Problem } from "../s3/problem";
import type { DagLine, PipelineHealth } from "./answers";
import type { Dispatcher } from "./client";
import { type Listed, listAll } from "./paging";

export async function listPipelines(dispatcher: Dispatcher): Promise<Listed<PipelineHealth>> {
  try {
    return await listAll<PipelineHealth>(dispatcher, ["health"], "pipelines", {}, 1000);
  } catch (error) {
    if (!(error instanceof Problem) || error.kind !== "missing") throw error;
  }
  const { items, more } = await listAll<DagLine>(dispatcher, ["dags"], "dags", {}, 1000);
  return { items: items.map(uncounted), more };
}

function uncounted(dag: DagLine): PipelineHealth {
  const { name, active, next, next_status, paused, jobs } = dag;
  const counts = { running: 0, waiting: 0, failed: 0, held: 0, sources: 0, sources_failed: 0 };
  return { name, active, next, next_status, paused, jobs, ...counts, published: [] };
}

export interface Sums {
  running: number;
  waiting: number;
  failed: number;
  held: number;
  late: number;
  building: number; // Pipelines with a version that is being built.
}

export function sumUp(pipelines: PipelineHealth[]): Sums {
  const sum = (of: (each: PipelineHealth) => number): number => pipelines.reduce((all, each) => all + of(each), 0);
  return {
    running: sum((each) => each.running),
    waiting: sum((each) => each.waiting),
    failed: sum((each) => each.failed),
    held: sum((each) => each.held),
    late: sum((each) => each.late ?? 0),
    building: sum((each) => Number(each.next !== null)),
  };
}

/** The status to show of a pipeline: the worst thing about it that somebody has to know. */
export function conditionOf(each: PipelineHealth): string {
  if (each.paused !== null) return "paused";
  if (each.failed || each.sources_failed) return "failed";
  if (each.late) return "late";
  if (each.held) return "held";
  if (each.running) return "running";
  if (each.waiting) return "pending";
  return each.active === null ? "staged" : "completed";
}
