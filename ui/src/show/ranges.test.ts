import { expect, test } from "vitest";
import type { GridRanges, RangeCounts } from "../dispatcher/answers";
import { rangesFor, sayCell, sharesOf, spotOf, stepped, totalOf } from "./ranges";

const row = (job: string, counts: Partial<RangeCounts>): RangeCounts => ({
  job,
  edition_id: job,
  done: [0, 0],
  running: [0, 0],
  waiting: [0, 0],
  failed: [0, 0],
  at_least: false,
  ...counts,
});
const answer: GridRanges = {
  dag: "shop",
  version: 1,
  keys: 190,
  ranges: [
    { first: "a", last: "b", keys: 90, from_key: null, before: "c" },
    { first: "c", last: "c", keys: 100, from_key: "c", before: null },
  ],
  rows: [
    row("days", { done: [90, 100] }),
    row("clean", { done: [90, 20], failed: [0, 30], waiting: [9, 0], at_least: true }),
    row("months", { done: [3, 0] }),
  ],
  older: null,
  more_jobs: false,
};

test("a cell is filled by what is done, and open work is seen above it", () => {
  expect(sharesOf(answer, answer.rows[0]!, 0)).toEqual({ done: 1, running: 0, waiting: 0, failed: 0 });
  expect(sharesOf(answer, answer.rows[1]!, 1)).toEqual({ done: 0.2, running: 0, waiting: 0, failed: 0.3 });
  // What waits to be made again is committed, too.
  expect(sharesOf(answer, answer.rows[1]!, 0)).toEqual({ done: 0.9, running: 0, waiting: 0.1, failed: 0 });
});

test("a job with fewer keys than the others is compared with itself", () => {
  expect(sharesOf(answer, answer.rows[2]!, 0).done).toBe(1);
  expect(sharesOf(answer, answer.rows[2]!, 1).done).toBe(0);
});

test("a cell says what is in it", () => {
  expect(sayCell(answer, { row: 1, column: 1 })).toBe("clean, c: 20 done, at least 30 failed");
  expect(sayCell(answer, { row: 2, column: 1 })).toBe("months, c: nothing yet");
  expect(sayCell(answer, { row: 0, column: 0 })).toBe("days, a to b, 90 keys: 90 done");
  expect(totalOf(answer, "done")).toBe(303);
});

test("keys lead to a cell that there is, and no further", () => {
  expect(stepped({ row: 0, column: 0 }, "ArrowUp", 3, 2)).toEqual({ row: 0, column: 0 });
  expect(stepped({ row: 0, column: 0 }, "End", 3, 2)).toEqual({ row: 0, column: 1 });
  expect(stepped({ row: 2, column: 1 }, "PageDown", 3, 2)).toEqual({ row: 2, column: 0 });
  expect(stepped({ row: 2, column: 1 }, "x", 3, 2)).toBeNull();
});

test("an address names a cell by its job and the first or last key of its range", () => {
  expect(spotOf(answer, "clean", "b")).toEqual({ row: 1, column: 0 });
  expect(spotOf(answer, "clean", "z")).toBeNull();
  expect(spotOf(answer, "gone", "a")).toBeNull();
});

test("a narrow window has fewer ranges", () => {
  expect([rangesFor(390), rangesFor(1000), rangesFor(1600)]).toEqual([24, 48, 80]);
});
