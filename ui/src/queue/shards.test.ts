// @vitest-environment happy-dom

import { expect, test } from "vitest";
import { Store, taskText } from "../testing/store";
import { shareWithin } from "./catalogue";
import { findTasks } from "./finding";
import { healthOf, readWorker } from "./roster";
import { lookShards, pollingText } from "./shards";
import { QueueView } from "./view";

const SOME = { status: "", type: "", shard: "", sinceS: null } as const;

function storeWith(prefixLen: number): Store {
  const store = new Store();
  store.put(
    "queue.json",
    `{"format":1,"shard_prefix_len":${prefixLen},"created_at":"2026-01-01T00:00:00Z","proof":null}`,
  );
  return store;
}

function addWorker(store: Store, worker_id: string, record: Record<string, unknown> = {}): void {
  const at = new Date(store.now).toISOString();
  store.put(
    `workers/${worker_id}.json`,
    JSON.stringify({ worker_id, started_at: at, last_heartbeat: at, heartbeat_s: 15, ...record }),
  );
}

function addTask(store: Store, prefixLen: number, id: string, record: Record<string, unknown> = {}): void {
  const shard = id.slice(0, prefixLen);
  store.put(`tasks/${shard}/${id}.json`, taskText(id, { shard, ...record }));
  if ((record.status ?? "pending") === "pending") store.put(`ready/${shard}/0029538000/${id}`, "t");
}

const look = (store: Store, under = "") => lookShards(new QueueView(store.bucket()), under);

test("a worker that was started with some shards polls these, and the others are named", async () => {
  const store = storeWith(1);
  addWorker(store, "two", { shards: ["0", "1"] });
  const shards = await look(store);
  expect(shards.cells.get("0")!.workers).toEqual(["two"]);
  expect(shards.cells.get("2")!.workers).toEqual([]);
  expect(pollingText(shards)).toBe(
    "1 worker polls only some; not 2, 3, 4, 5, 6, 7, 8, 9 and 6 more: tasks there are not claimed.",
  );
});

test("workers that poll all shards are told from those that do not", async () => {
  const store = storeWith(1);
  expect(pollingText(await look(store))).toBe("No worker is running, so no shard is polled.");
  addWorker(store, "all");
  expect(pollingText(await look(store))).toBe("1 worker polls all shards.");
  addWorker(store, "leasing", { leasing: true });
  expect(pollingText(await look(store))).toBe("1 worker polls all shards, 1 worker polls only some.");
});

test("a worker that fell silent polls nothing", async () => {
  const store = storeWith(1);
  addWorker(store, "gone", { last_heartbeat: new Date(store.now - 61_000).toISOString() });
  expect((await look(store)).everywhere).toBe(0);
});

const GRANTED = "2026-03-01T08:00:00Z";

function addPlan(store: Store, grants: object[]): void {
  store.put("shard-leases/plan.json", JSON.stringify({ number: 3, ttl_s: 30, wait_s: 30, members: [], grants }));
}

test("the owners of leased shards are read once, and shown with the shards that are nobody's", async () => {
  const store = storeWith(2);
  addWorker(store, "a", { leasing: true, heartbeat_s: 60 });
  addPlan(store, [
    { worker_id: "a", first: "00", last: "0f", since: GRANTED, number: 3 },
    { worker_id: "gone", first: "20", last: "20", since: new Date(store.now).toISOString(), number: 3 },
  ]);
  const queue = new QueueView(store.bucket());
  const { owners, unknownOwners } = await lookShards(queue);
  expect(unknownOwners).toBeNull();
  expect(owners.map(({ first, last, shards, grant }) => [first, last, shards, grant?.worker_id])).toEqual([
    ["00", "0f", 16, "a"],
    ["10", "1f", 16, undefined],
    ["20", "20", 1, "gone"],
    ["21", "ff", 223, undefined],
  ]);
  expect(owners.map((block) => block.moving)).toEqual([false, false, true, false]);
  expect([owners[0]!.expiresAt, owners[2]!.expiresAt]).toEqual(["2026-03-01T09:03:00Z", null]);
  await lookShards(queue);
  expect(store.asked.filter((asked) => asked === "GET shard-leases/plan.json")).toHaveLength(1);
});

test("beyond 256 shards, those that begin with the same two characters are owned together", async () => {
  const store = storeWith(4);
  addWorker(store, "a", { leasing: true });
  addPlan(store, [{ worker_id: "a", first: "80", last: "ff", since: GRANTED, number: 1 }]);
  const { owners } = await look(store);
  expect(owners.map(({ first, last, shards }) => [first, last, shards])).toEqual([
    ["0000", "7fff", 32768],
    ["8000", "ffff", 32768],
  ]);
});

test.each([
  "{",
  "[]",
  '{"wait_s":30,"grants":[{"worker_id":"a","first":"00","last":"0","since":"2026-03-01T08:00:00Z"}]}',
  '{"wait_s":30,"grants":[{"worker_id":7,"first":"0","last":"1","since":"2026-03-01T08:00:00Z"}]}',
  '{"wait_s":30,"grants":[{"worker_id":"a","first":"0","last":"1","since":"soon"}]}',
  '{"grants":[]}',
])("a broken plan hides nothing but the owners: %s", async (text) => {
  const store = storeWith(1);
  addWorker(store, "a", { leasing: true });
  store.put("shard-leases/plan.json", text);
  const shards = await look(store);
  expect(shards.cells.size).toBe(16);
  expect(shards.owners).toEqual([]);
  expect(shards.unknownOwners).not.toBeNull();
});

test("a queue whose workers lease no shards is asked for no plan", async () => {
  const store = storeWith(1);
  addWorker(store, "all");
  addPlan(store, []);
  expect((await look(store)).owners).toEqual([]);
  expect(store.asked.some((asked) => asked.includes("shard-leases"))).toBe(false);
});

test("beyond 256 shards one goes by their first characters to each single one", async () => {
  const store = storeWith(4);
  addTask(store, 4, "ab12ffff-0000-4000-8000-000000000001");
  addTask(store, 4, "ab13ffff-0000-4000-8000-000000000002");
  const groups = await look(store);
  expect([groups.cells.size, groups.grouped, groups.cells.get("ab")!.waiting]).toEqual([256, true, 2]);
  const inside = await look(store, "ab");
  expect([inside.cells.size, inside.grouped, inside.cells.get("ab12")!.waiting]).toEqual([256, false, 1]);
  expect([...(await look(storeWith(3), "ab")).cells.keys()]).toHaveLength(16);
  const queue = new QueueView(store.bucket());
  expect((await findTasks(queue, { ...SOME, shard: "ab12" }, 10)).tasks).toHaveLength(1);
  expect((await findTasks(queue, { ...SOME, shard: "ab" }, 10)).tasks).toHaveLength(2);
});

test("how much of a shard was listed is reckoned within that shard", () => {
  expect(shareWithin("", 0.3)).toBe(0.3);
  expect(shareWithin("f", 15.25 / 16)).toBeCloseTo(0.25);
  expect(shareWithin("80", 0.5)).toBe(0);
});

test("all tasks include the archived ones", async () => {
  const store = storeWith(1);
  addTask(store, 1, "a0000000-0000-4000-8000-000000000001", { status: "archived" });
  addTask(store, 1, "b0000000-0000-4000-8000-000000000002", { status: "completed" });
  const queue = new QueueView(store.bucket());
  expect((await findTasks(queue, { ...SOME, status: "all" }, 10)).tasks).toHaveLength(2);
  expect((await findTasks(queue, SOME, 10)).tasks).toHaveLength(1);
});

test("a pending task is found behind many of another type", async () => {
  const store = storeWith(1);
  addTask(store, 1, "a0000000-0000-4000-8000-000000000000", { task_type: "rare" });
  store.now += 1000;
  for (let n = 1; n <= 120; n += 1)
    addTask(store, 1, `a0000000-0000-4000-8000-${String(n).padStart(12, "0")}`, { task_type: "common" });
  const found = await findTasks(new QueueView(store.bucket()), { ...SOME, status: "pending", type: "rare" }, 50);
  expect(found.tasks.map((task) => task.task_type)).toEqual(["rare"]);
  expect(found.more).toBe(false);
});

test.each([
  [15, 59, null, "active"],
  [15, 61, null, "stale"],
  [120, 470, null, "active"],
  [120, 490, null, "stale"],
  [1, 9, null, "active"],
  [1, 11, null, "stale"],
  [null, 61, null, "stale"],
  [15, 61, 3600, "active"],
  [120, 6, 5, "stale"],
])("a heartbeat every %s s, silent for %i s, threshold %s: %s", (heartbeat_s, silentS, silentMaxS, health) => {
  const at = "2026-03-01T09:00:00Z";
  const info = readWorker(JSON.stringify({ worker_id: "w", started_at: at, last_heartbeat: at, heartbeat_s }))!;
  expect(healthOf(info, Date.parse(at) / 1000 + silentS, silentMaxS)).toBe(health);
});

test("a roster of more than a thousand workers is listed to its end", async () => {
  const store = storeWith(1);
  for (let n = 0; n < 1005; n += 1) addWorker(store, `w${n}`);
  const { roster } = new QueueView(store.bucket());
  expect(await roster.look(2000)).toHaveLength(1005);
  expect(roster.truncated).toBe(false);
});
