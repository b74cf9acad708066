/** Runs over time: which bars of a job stand in one line, and where each begins and ends. */

import { seconds } from "../core/instant";
import type { TimelineTask } from "../dispatcher/answers";

export interface Bar {
  from: number; // Seconds since 1970.
  to: number;
  kind: string; // waiting, or the status that the attempt has or had
}

export interface Run {
  task: TimelineTask;
  bars: Bar[];
  from: number;
  to: number;
}

/** The times that a task waited and ran. Between attempts it waits again. */
export function runOf(task: TimelineTask, now: number): Run {
  const bars: Bar[] = [];
  let since = Math.max(seconds(task.created_at) ?? now, 0);
  for (const each of task.attempts) {
    const began = seconds(each.started_at) ?? since;
    if (began > since) bars.push({ from: since, to: began, kind: "waiting" });
    const ended = each.ended_at === null ? now : (seconds(each.ended_at) ?? now);
    bars.push({ from: began, to: Math.max(began, ended), kind: each.outcome ?? "running" });
    since = Math.max(began, ended);
  }
  if (task.status === "pending" && now > since) bars.push({ from: since, to: now, kind: "waiting" });
  const from = bars[0]?.from ?? since;
  return { task, bars, from, to: bars.at(-1)?.to ?? since };
}

/** Runs in as few lines as can be, so that no two of a line overlap. */
export function packLanes(runs: Run[]): Run[][] {
  const lanes: Run[][] = [];
  for (const run of [...runs].sort((a, b) => a.from - b.from)) {
    const free = lanes.find((lane) => lane.at(-1)!.to <= run.from);
    if (free) free.push(run);
    else lanes.push([run]);
  }
  return lanes;
}

/** How long a run worked: the sum of its attempts. */
export function workedS(run: Run): number {
  return run.bars.filter((bar) => bar.kind !== "waiting").reduce((sum, bar) => sum + bar.to - bar.from, 0);
}

export function waitedS(run: Run): number {
  return run.bars.filter((bar) => bar.kind === "waiting").reduce((sum, bar) => sum + bar.to - bar.from, 0);
}

/** The value below which so large a part of the values lies; null of none. */
export function quantile(values: number[], part: number): number | null {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))]! : null;
}
