// @vitest-environment happy-dom

import { expect, test } from "vitest";
import { members } from "../core/document";
import { idOf, Store, taskText } from "../testing/store";
import { move } from "./moves";

const BOARD = "control/board.json";
const id = idOf(1);
const shard = id[0]!;
const key = `tasks/${shard}/${id}.json`;

test("a replayed task is pending, its ready hint names the write, and its input is untouched", async () => {
  const store = new Store();
  store.put(
    key,
    taskText(id, { status: "failed" }).replace('"input":null', '"input":{"n":1.0,"big":12345678901234567890}'),
  );
  const task = await move(store.bucket(), 1, id, "replay");
  expect(task.status).toBe("pending");
  expect(members(store.text(key)!).get("input")).toBe('{"n":1.0,"big":12345678901234567890}');
  const hints = [...store.objects.keys()].filter((each) => each.startsWith("ready/"));
  expect(hints).toHaveLength(1);
  expect(store.text(hints[0]!)).toBe(task.token);
});

test("a cancelled pending task loses its ready hint", async () => {
  const store = new Store();
  const hint = `ready/${shard}/${String(Date.parse("2026-03-01T08:00:00Z") / 60_000).padStart(10, "0")}/${id}`;
  store.put(key, taskText(id));
  store.put(hint, "before");
  const task = await move(store.bucket(), 1, id, "cancel", { by: "ada", reason: "late" });
  expect([task.status, task.cancelled_by, task.cancel_reason]).toEqual(["cancelled", "ada", "late"]);
  expect(store.text(hint)).toBeNull();
  expect(store.text("control/desired.json")).toBeNull();
});

test("of a running task the workers are told, beside what others have asked of them", async () => {
  const store = new Store();
  const until = "2026-03-01T09:01:00Z";
  store.put(key, taskText(id, { status: "running", lease_id: "l", worker_id: "w", lease_expires_at: until }));
  store.put("control/desired.json", '{"queue":null,"types":{"x":{"at":"2026-03-01T08:00:00Z"}},"token":"t"}');
  store.put(BOARD, '{"token":"b","orders":"t"}');
  const task = await move(store.bucket(), 1, id, "cancel");
  expect([task.status, task.cancel_requested, task.lease_id]).toEqual(["running", true, "l"]);
  const desired = JSON.parse(store.text("control/desired.json")!);
  expect(Object.keys(desired.cancels)).toEqual([id]);
  expect(desired.types.x).toBeDefined();
  expect(JSON.parse(store.text(BOARD)!).orders).toBe(desired.token);
});

test("a replayed task is announced on the board, so that no worker has to look for it", async () => {
  const store = new Store();
  store.put(key, taskText(id, { status: "failed" }));
  store.put(
    BOARD,
    '{"token":"b","sequence":7,"workers":3,"watch":{"by":"w","until":"2026-03-01T09:01:00Z","rank":1}}',
  );
  const task = await move(store.bucket(), 1, id, "replay");
  const board = JSON.parse(store.text(BOARD)!);
  const hint = [...store.objects.keys()].find((each) => each.startsWith("ready/"))!;
  const { at: _, ...notice } = board.notices[0];
  const etag = store.objects.get(hint)!.at(-1)!.etag;
  expect(notice).toEqual({ task: id, hint, due: task.available_at, etag, number: 8 });
  expect([board.sequence, board.workers, board.watch.by]).toEqual([8, 3, "w"]);
});

test("others write on the board at the same time: nothing of theirs is lost, and the task is moved in any case", async () => {
  const store = new Store();
  store.put(key, taskText(id, { status: "failed" }));
  store.put(BOARD, '{"token":"b","sequence":7}');
  let raced = 0;
  store.fault = (method, at) => {
    if (method === "PUT" && at === BOARD && raced++ === 0) store.put(BOARD, '{"token":"c","sequence":9}');
    return null;
  };
  await move(store.bucket(), 1, id, "replay");
  expect(JSON.parse(store.text(BOARD)!).sequence).toBe(10);
  store.put(key, taskText(id, { status: "failed" }));
  store.put(BOARD, "{broken");
  expect((await move(store.bucket(), 1, id, "replay")).status).toBe("pending");
  expect(store.text(BOARD)).toBe("{broken");
});

test("a write whose reply was lost is recognised, and not repeated", async () => {
  const store = new Store();
  store.put(key, taskText(id, { status: "failed" }));
  let lost = 0;
  store.fault = (method, at) => (method === "PUT" && at === key && lost++ === 0 ? "lose reply" : null);
  const task = await move(store.bucket(), 1, id, "archive");
  expect(task.status).toBe("archived");
  expect(store.objects.get(key)).toHaveLength(2);
});

test("a store that is busy once is asked again", async () => {
  const store = new Store();
  store.put(key, taskText(id, { status: "failed" }));
  let busy = 0;
  store.fault = (method, at) => (method === "PUT" && at === key && busy++ === 0 ? "unavailable" : null);
  expect((await move(store.bucket(), 1, id, "archive")).status).toBe("archived");
});

test("who writes first wins: the command is decided anew on what is there", async () => {
  const store = new Store();
  store.put(key, taskText(id, { status: "failed" }));
  let raced = false;
  store.fault = (method, at) => {
    if (method === "PUT" && at === key && !raced) {
      raced = true;
      store.put(key, taskText(id, { status: "pending", token: "another" }));
    }
    return null;
  };
  await expect(move(store.bucket(), 1, id, "replay")).rejects.toThrow("is pending; only a failed");
  expect(JSON.parse(store.text(key)!).token).toBe("another");
});

test("a task that is not there cannot be moved", async () => {
  await expect(move(new Store().bucket(), 1, id, "replay")).rejects.toThrow("no task");
});

test("below a prefix, everything stays below it", async () => {
  const store = new Store();
  store.put(`team/${key}`, taskText(id, { status: "failed" }));
  await move(store.bucket("team/"), 1, id, "replay");
  expect([...store.objects.keys()].every((each) => each.startsWith("team/"))).toBe(true);
});
