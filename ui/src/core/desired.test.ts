import { expect, test } from "vitest";
import vectors from "../../vectors/desired.json";
import { readDesired, told, withCancel } from "./desired";
import { micros } from "./instant";

test.each(vectors)("workers are told of a cancellation as the queue tells them", (vector) => {
  const after = withCancel(vector.before, vector.task_id, micros(vector.now)!, vector.token);
  expect(JSON.parse(after)).toEqual(JSON.parse(vector.after));
});

test("nothing was ever wanted while there is no object", () => {
  expect(readDesired(null)).toEqual({ queue: null, types: {}, workers: {}, cancels: {} });
});

test("an order is told with who gave it and why", () => {
  expect(told({ at: "", by: "ada", reason: "deploy" })).toBe("by ada: deploy");
  expect(told({ at: "", by: null, reason: null })).toBe("");
});
