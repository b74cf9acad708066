// @vitest-environment happy-dom

/** What looking costs, and that it finds what is there. */

import { describe, expect, test } from "vitest";
import { idOf, Store, taskText } from "../testing/store";
import { Catalogue, shareOf } from "./catalogue";
import { findTasks } from "./finding";
import { lookOverview } from "./overview";
import { stepsOf, Timeline } from "./timeline";
import { QueueView } from "./view";

const ALL = { status: "", type: "", shard: "", sinceS: null } as const;

function filled(count: number, status = (_: number) => "completed"): Store {
  const store = new Store();
  store.put("queue.json", '{"format":1,"shard_prefix_len":1,"created_at":"2026-01-01T00:00:00Z"}');
  for (let n = 0; n < count; n += 1) {
    store.now += 10;
    const id = idOf(n);
    store.put(
      `tasks/${id[0]}/${id}.json`,
      taskText(id, {
        status: status(n),
        updated_at: new Date(store.now).toISOString(),
        last_error: status(n) === "failed" ? `E ${n}` : null,
      }),
    );
  }
  return store;
}

describe("a queue of 100,000 tasks", () => {
  const store = filled(100_000, (n) => (n % 50 ? "completed" : "failed"));

  test("is looked at again for a handful of requests", async () => {
    const queue = new QueueView(store.bucket());
    await lookOverview(queue);
    await lookOverview(queue);
    const before = store.asked.length;
    const overview = await lookOverview(queue);
    expect(store.asked.length - before).toBeLessThanOrEqual(5 + 8 + 4);
    expect(overview.total.exact).toBe(false);
    expect(overview.total.count).toBeGreaterThan(90_000);
    expect(overview.total.count).toBeLessThan(110_000);
    expect(overview.byStatus.completed).toBeGreaterThan(80_000);
  });

  test("goes on reading from what was listed, without listing again", async () => {
    const queue = new QueueView(store.bucket());
    await lookOverview(queue, 0);
    const before = store.asked.length;
    const overview = await lookOverview(queue, 30, 0);
    expect(store.asked.slice(before).filter((each) => each.startsWith("LIST"))).toEqual([]);
    expect(store.asked.length - before).toBe(30);
    expect(overview.read).toBeGreaterThan(10);
  });

  test("shows a first page of its list for a few listings and one read for each row", async () => {
    const queue = new QueueView(store.bucket());
    const before = store.asked.length;
    const found = await findTasks(queue, ALL, 50);
    expect(found.tasks).toHaveLength(50);
    expect(store.asked.length - before).toBeLessThanOrEqual(1 + 4 + 50);
    const again = store.asked.length;
    await findTasks(queue, ALL, 50);
    expect(store.asked.length - again).toBeLessThanOrEqual(4 + 50);
  });
}, 30_000);

test("a queue of any size is known in full after as many rounds as it takes, and then the newest come first", async () => {
  const queue = new QueueView(filled(6000).bucket());
  expect((await findTasks(queue, ALL, 3)).size.exact).toBe(false);
  const found = await findTasks(queue, ALL, 3);
  expect(found.size).toEqual({ count: 6000, exact: true });
  expect(found.tasks.map((task) => task.id)).toEqual([idOf(5999), idOf(5998), idOf(5997)]);
});

test("what was deleted leaves the catalogue, and what is new enters it", async () => {
  const store = filled(2500);
  const catalogue = new Catalogue(store.bucket(), "tasks/");
  await catalogue.advance(10);
  expect(catalogue.size).toEqual({ count: 2500, exact: true });
  const gone = [...catalogue.entries.keys()][1700]!;
  await store.bucket().remove(gone);
  const id = idOf(9999);
  store.put(`tasks/${id[0]}/${id}.json`, taskText(id));
  await catalogue.advance(10);
  expect(catalogue.entries.has(gone)).toBe(false);
  expect(catalogue.entries.has(`tasks/${id[0]}/${id}.json`)).toBe(true);
  expect(catalogue.entries.size).toBe(2500);
});

test("a share of the ids is told by a key of a task, and by the shard of an index key", () => {
  expect(shareOf("8/80000000-0000-4000-8000-000000000000.json")).toBeCloseTo(0.5);
  expect(shareOf("8/0029538060/00000000-0000-4000-8000-000000000000")).toBeCloseTo(8.5 / 16);
  expect(shareOf("")).toBe(0);
});

test("filters are those of the command line: archived tasks only if asked for, failed ones by status", async () => {
  const queue = new QueueView(filled(60, (n) => ["completed", "failed", "archived"][n % 3]!).bucket());
  expect((await findTasks(queue, ALL, 100)).tasks).toHaveLength(40);
  expect((await findTasks(queue, { ...ALL, status: "archived" }, 100)).tasks).toHaveLength(20);
  expect((await findTasks(queue, { ...ALL, type: "other" }, 100)).tasks).toHaveLength(0);
  expect((await findTasks(queue, { ...ALL, sinceS: 0.1 }, 100)).tasks.length).toBeLessThan(60);
});

test("one broken object hides none of the others", async () => {
  const store = filled(3);
  store.put(`tasks/${idOf(7)[0]}/${idOf(7)}.json`, "{broken");
  expect((await findTasks(new QueueView(store.bucket()), ALL, 10)).tasks).toHaveLength(3);
});

test("active tasks are found through the index, and again for a listing only", async () => {
  const store = filled(5);
  const id = idOf(20);
  store.put(`tasks/${id[0]}/${id}.json`, taskText(id));
  store.put(`ready/${id[0]}/0029538000/${id}`, "t");
  const queue = new QueueView(store.bucket());
  const pending = { ...ALL, status: "pending" } as const;
  expect((await findTasks(queue, pending, 50)).tasks.map((task) => task.id)).toEqual([id]);
  const before = store.asked.length;
  await findTasks(queue, pending, 50);
  expect(store.asked.slice(before)).toEqual(["LIST ready/", "LIST inbox/"]);
});

test("tasks in the inboxes of workers are found and counted as others that wait", async () => {
  const store = filled(2);
  const [routed, ready] = [idOf(20), idOf(21)];
  store.put(`tasks/${routed[0]}/${routed}.json`, taskText(routed, { inbox: "a1" }));
  store.put(`inbox/a1/0029538000/${routed}`, "t");
  store.put(`tasks/${ready[0]}/${ready}.json`, taskText(ready));
  store.put(`ready/${ready[0]}/0029538000/${ready}`, "t");
  const at = new Date(store.now).toISOString();
  const record = { worker_id: "a1", started_at: at, last_heartbeat: at, inbox_until: at };
  const queue = new QueueView(store.bucket());
  const pending = { ...ALL, status: "pending" } as const;
  const found = await findTasks(queue, pending, 50);
  expect(found.tasks.map((task) => task.id).sort()).toEqual([routed, ready].sort());
  expect(found.size.count).toBe(2);
  const there = await findTasks(queue, { ...pending, shard: routed[0]! }, 50);
  expect(there.tasks.every((task) => task.shard === routed[0])).toBe(true);
  expect((await lookOverview(queue)).ready.due).toBe(1); // No worker says that it has an inbox.
  store.put("workers/a1.json", JSON.stringify(record));
  const overview = await lookOverview(queue);
  expect([overview.ready.due, overview.byStatus.pending]).toEqual([2, 2]);
});

test("a history is read once, and renewals are no news", async () => {
  const store = new Store();
  const id = idOf(1);
  const key = `tasks/${id[0]}/${id}.json`;
  const at = (s: number) => `2026-03-01T08:00:${String(s).padStart(2, "0")}Z`;
  const lease = { status: "running", attempt: 1, lease_id: "l", worker_id: "w" };
  store.put(key, taskText(id));
  for (const s of [1, 2, 3]) store.put(key, taskText(id, { ...lease, updated_at: at(s) }));
  store.put(key, taskText(id, { status: "pending", attempt: 1, retry_count: 1, updated_at: at(8) }));
  store.put(key, taskText(id, { ...lease, attempt: 2, lease_id: "m", updated_at: at(9) }));
  store.put(key, taskText(id, { status: "completed", attempt: 2, retry_count: 1, updated_at: at(11) }));
  const timeline = new Timeline(store.bucket(), key);
  const steps = stepsOf(await timeline.look("e1"));
  expect(steps.map((step) => [step.what, step.count, step.tookS])).toEqual([
    ["submitted", 1, 1],
    ["claimed, attempt 1", 3, 7],
    ["failed, retry 1 of 3", 1, 1],
    ["claimed, attempt 2", 1, 2],
    ["completed", 1, null],
  ]);
  const before = store.asked.length;
  await timeline.look("e1");
  expect(store.asked.length).toBe(before);
  store.put(key, taskText(id, { status: "archived", attempt: 2, updated_at: at(12) }));
  await timeline.look("e2");
  expect(store.asked.slice(before)).toEqual([`LIST ${key}`, `GET ${key}`]);
});
