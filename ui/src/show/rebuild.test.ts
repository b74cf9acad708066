import { expect, test } from "vitest";
import { stuckText } from "./rebuild";

const REBUILD = { version: 3, status: "staged", jobs: [], tasks: {}, remaining: 0, waiting: 0, caught_up: false };

test("a stuck rebuild says what waits and what to do", () => {
  const todo = "for failed tasks: replay those, or activate version 3 incomplete.";
  expect(stuckText({ ...REBUILD, stuck: true, blocked: 1 })).toBe(`1 task waits ${todo}`);
  expect(stuckText({ ...REBUILD, stuck: true, blocked: 2 })).toBe(`2 tasks wait ${todo}`);
  expect(stuckText({ ...REBUILD, stuck: true, blocked: 0 })).toBe(`The remaining tasks wait ${todo}`);
});
