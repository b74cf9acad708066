import { expect, test } from "vitest";
import type { Backfill } from "../dispatcher/answers";
import { progressOf, rangeOf } from "./backfill";

const BACKFILL: Backfill = {
  id: "b",
  dag: "shop",
  job: "clean",
  from_key: "2024-01-01",
  to_key: "2024-01-31",
  at_once: 4,
  state: "running",
  live: true,
  made: 10,
  left: 21,
  tasks: { completed: 5, failed: 1, running: 2, pending: 1, cancelled: 1 },
  missing: [],
  created_at: "",
  created_by: "ada",
  ended_at: null,
};

test("the progress adds up to what is known", () => {
  expect(progressOf(BACKFILL)).toEqual({ done: 5, failed: 1, open: 3, total: 31 });
});

test("a range says which bounds it has", () => {
  expect(rangeOf(BACKFILL)).toBe("2024-01-01 to 2024-01-31");
  expect(rangeOf({ ...BACKFILL, to_key: null })).toBe("2024-01-01 to the last");
  expect(rangeOf({ ...BACKFILL, from_key: null, to_key: null })).toBe("all partitions");
  expect(rangeOf({ ...BACKFILL, to_key: "2024-01-01" })).toBe("2024-01-01");
});
