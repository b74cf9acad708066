import { expect, test } from "vitest";
import type { TimelineTask } from "../dispatcher/answers";
import { packLanes, quantile, runOf, waitedS, workedS } from "./lanes";

const at = (second: number): string => new Date(second * 1000).toISOString();

function task(id: string, created: number, attempts: [from: number, to: number | null, outcome: string | null][]) {
  return {
    id,
    job: "clean",
    status: attempts.at(-1)?.[1] === null ? "running" : attempts.length ? "completed" : "pending",
    partition_key: null,
    cursor: null,
    created_at: at(created),
    available_at: at(created),
    completed_at: null,
    attempts: attempts.map(([from, to, outcome], n) => ({
      attempt: n + 1,
      started_at: at(from),
      ended_at: to === null ? null : at(to),
      outcome,
      worker_id: null,
    })),
  } satisfies TimelineTask;
}

test("a run waits before each attempt, and runs in it", () => {
  const run = runOf(
    task("a", 10, [
      [15, 20, "retried"],
      [30, null, null],
    ]),
    42,
  );
  expect(run.bars.map((bar) => [bar.kind, bar.from, bar.to])).toEqual([
    ["waiting", 10, 15],
    ["retried", 15, 20],
    ["waiting", 20, 30],
    ["running", 30, 42],
  ]);
  expect([workedS(run), waitedS(run)]).toEqual([17, 15]);
});

test("what was never tried waits until now", () => {
  expect(runOf(task("a", 10, []), 25).bars).toEqual([{ kind: "waiting", from: 10, to: 25 }]);
});

test("runs of one lane never overlap, and a lane is used again", () => {
  const runs = [
    task("a", 0, [[0, 10, "completed"]]),
    task("b", 5, [[5, 8, "completed"]]),
    task("c", 10, [[10, 12, "completed"]]),
  ].map((each) => runOf(each, 20));
  expect(packLanes(runs).map((lane) => lane.map((run) => run.task.id))).toEqual([["a", "c"], ["b"]]);
});

test("a quantile is one of the values", () => {
  expect(quantile([3, 1, 2], 0.5)).toBe(2);
  expect(quantile([1, 2, 3], 0.95)).toBe(3);
  expect(quantile([], 0.5)).toBeNull();
});
