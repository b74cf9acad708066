import { expect, test } from "vitest";
import { readTask } from "../core/task";
import { readWorker, type WorkerInfo } from "./roster";
import { whyUnclaimed } from "./waiting";

const AT = "2026-03-01T09:00:00Z";
const NOW = Date.parse(AT) / 1000;

function task(changes: object = {}) {
  const stored = {
    id: "a",
    task_type: "mail",
    shard: "a",
    token: "x",
    available_at: AT,
    created_at: AT,
    updated_at: AT,
  };
  return readTask(JSON.stringify({ ...stored, ...changes }), "key");
}

function worker(changes: object = {}): WorkerInfo {
  const info = { worker_id: "w", started_at: AT, last_heartbeat: AT, heartbeat_s: 15, task_types: ["mail"] };
  return readWorker(JSON.stringify({ ...info, ...changes }))!;
}

const why = (workers: WorkerInfo[], changes: object = {}, after = 30) =>
  whyUnclaimed(task(changes), workers, NOW + after, null);

test("a task that nobody can run does not wait in silence", () => {
  expect(why([])).toBe("no worker is running");
  expect(why([worker({ state: "draining" })])).toBe("no worker is running");
  expect(why([worker()], {}, 3600)).toBe("no worker is running");
  expect(why([worker({ task_types: ["other"] })])).toBe("no running worker has a handler for this type");
  expect(why([worker({ paused_types: ["mail"] })])).toBe("the type is paused");
});

test("a task that will be claimed has nothing to explain", () => {
  expect(why([worker()])).toBeNull();
  expect(why([worker({ paused_types: ["mail"] }), worker({ worker_id: "v" })])).toBeNull();
  expect(why([], {}, 3)).toBeNull();
  expect(why([], { status: "completed" })).toBeNull();
});
