import { describe, expect, test } from "vitest";
import { readDesired } from "./desired";
import { misfit } from "./shape";
import { readTask } from "./task";

const EXAMPLES = { name: "", age: 0, note: null, tags: [], more: {} };

describe("a member", () => {
  test.each([{}, { name: "a", age: 1, note: null, tags: ["x"], more: { a: 1 } }, { note: "x", other: [1] }])(
    "of %j fits",
    (found) => expect(misfit(found, EXAMPLES)).toBeNull(),
  );
  test.each([
    [{ name: null }, "name"],
    [{ age: "1" }, "age"],
    [{ note: 5 }, "note"],
    [{ tags: [1] }, "tags"],
    [{ tags: "x" }, "tags"],
    [{ more: [] }, "more"],
    [{ more: null }, "more"],
  ])("of %j does not", (found, name) => expect(misfit(found, EXAMPLES)).toBe(name));
});

describe("what is stored and should not be", () => {
  const at = "2026-03-01T09:00:00Z";
  const task = { id: "a", task_type: "t", shard: "0", token: "x", available_at: at, created_at: at, updated_at: at };
  test.each([
    ["last_error", 5],
    ["traceback", {}],
    ["status", null],
    ["status", "asleep"],
    ["worker_id", ["w"]],
    ["attempt", "1"],
    ["timeout_seconds", "1"],
    ["cancel_requested", "no"],
  ])("in a task, %s as %j, is named", (name, value) =>
    expect(() => readTask(JSON.stringify({ ...task, [name]: value }), "k")).toThrow(
      `its ${name} is missing or wrong`,
    ),
  );
  test("in a task, its own values may be anything", () =>
    expect(readTask(JSON.stringify({ ...task, input: 1, output: [2], progress: "x" }), "k").attempt).toBe(0));
  test.each(['{"types":5}', '{"types":{"a":7}}', '{"workers":{"w":null}}', '{"queue":"x"}', "[]", "7"])(
    "in wishes of operators, %s, is no wish",
    (text) => expect(() => readDesired(text)).toThrow(),
  );
});
