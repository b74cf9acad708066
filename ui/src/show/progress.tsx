/** Progress in whatever words an attempt has for it: a bar where a share can be told, and the value itself. */

import type { JSX } from "preact";
import { count } from "./text";
import { Tree } from "./tree";

interface Share {
  done: number;
  of: number;
  what: string;
  all?: boolean; // It says everything that the value says.
}

export function ProgressShown({ progress }: { progress: unknown }): JSX.Element {
  const share = shareOf(progress);
  return (
    <div style={{ display: "grid", gap: "4px", maxWidth: "460px" }}>
      {share && (
        <>
          <progress max={share.of} value={share.done} aria-label="Progress" />
          <span class="second">
            {share.what} · {Math.round((100 * share.done) / share.of)} %
          </span>
        </>
      )}
      {typeof progress === "string" ? (
        <span>{progress}</span>
      ) : !share || (!share.all && Object.keys(Object(progress)).length > 2) ? (
        <Tree value={progress} />
      ) : null}
    </div>
  );
}

/** Whether there is anything to show: the share that a completed one had last reported says nothing any more. */
export function progressMatters(progress: unknown, status: string): boolean {
  if (progress === null || progress === undefined) return false;
  return status !== "completed" || shareOf(progress) === null;
}

/** Spark tells stages and tasks; handlers tell a fraction, a percentage, or done and total. */
export function shareOf(progress: unknown): Share | null {
  if (typeof progress === "number")
    return progress >= 0 && progress <= 1 ? { done: progress, of: 1, what: "done" } : null;
  if (!isObject(progress)) return null;
  const spark = sparkOf(progress);
  if (spark) return spark;
  const pair = pairOf(progress, "");
  if (pair) return pair;
  const words = typeof progress.text === "string" ? progress.text : "done";
  const { percent, fraction } = progress;
  if (typeof percent === "number" && percent >= 0 && percent <= 100) return { done: percent, of: 100, what: words };
  return typeof fraction === "number" && fraction >= 0 && fraction <= 1
    ? { done: fraction, of: 1, what: words }
    : null;
}

/** As workers on Spark tell it: stages come to light one by one, so the tasks known so far are the measure. */
function sparkOf(progress: Record<string, unknown>): Share | null {
  const { phase, stages, tasks } = progress;
  const share = isObject(tasks) ? pairOf(tasks, " Spark tasks") : null;
  if (!share || !isObject(tasks)) return null;
  const words = [
    share.what,
    tasks.active ? `${tasks.active} of them running` : "",
    isObject(stages) ? `${stages.done} of ${stages.total === 1 ? "1 stage" : `${stages.total} stages`}` : "",
  ];
  const what = [phase, words.filter(Boolean).join(", ")].filter(Boolean).join(": ");
  const waiting = typeof progress.waiting === "string" ? ` · ${progress.waiting}` : "";
  return { ...share, what: what + waiting, all: true };
}

function pairOf(said: Record<string, unknown>, what: string): Share | null {
  for (const [done, of] of PAIRS) {
    const [some, all] = [said[done], said[of]];
    if (typeof some === "number" && typeof all === "number" && all > 0)
      return { done: Math.min(some, all), of: all, what: `${count(some)} of ${count(all)}${what}` };
  }
  return null;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const PAIRS: [string, string][] = [
  ["done", "total"],
  ["done", "of"],
  ["current", "total"],
  ["completed", "total"],
];
