import { expect, test } from "vitest";
import { sealedWith, unsealed } from "./sealed";
import { readTask } from "./task";

test("an encrypted value is told apart by its form", () => {
  expect(sealedWith("sealed:v1:november:AAAA")).toBe("november");
  expect(sealedWith("sealed:v1:november:")).toBe("november");
  for (const other of ["sealed", "sealed:v2:k:AAAA", "sealed:v1:", "", null, 7, { a: "sealed:v1:k:AAAA" }])
    expect(sealedWith(other)).toBeNull();
});

test("a task shows that its error is encrypted, and nothing of the text", () => {
  const at = "2026-03-01T09:00:00Z";
  const stored = {
    id: "a3b1c2d4-0000-4000-8000-00000000000f",
    task_type: "t",
    shard: "a",
    token: "x",
    available_at: at,
    created_at: at,
    updated_at: at,
    last_error: "sealed:v1:k1:AAAA",
    traceback: "sealed:v1:k1:BBBB",
    progress: "sealed:v1:k1:CCCC",
  };
  const task = readTask(JSON.stringify(stored), "key");
  expect([task.last_error, task.traceback, task.progress]).toEqual(Array(3).fill("encrypted with key k1"));
  expect(unsealed("plain")).toBe("plain");
});
