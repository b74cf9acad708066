import { expect, test } from "vitest";
import type { Query } from "./client";
import { listAll } from "./paging";

/** A dispatcher with so many datasets, which gives at most `page` of them at once. */
function dispatcherWith(total: number, page: number) {
  const asked: Query[] = [];
  const get = async (_: string[], query: Query = {}): Promise<never> => {
    asked.push(query);
    const from = query.after ? Number(query.after) : 0;
    const upto = Math.min(total, from + Math.min(page, Number(query.limit)));
    const datasets = Array.from({ length: upto - from }, (_, n) => from + n);
    return { datasets, next: upto < total ? String(upto) : null } as never;
  };
  return { get, asked };
}

test("a list of several pages is followed to its end, with its filter on each page", async () => {
  const dispatcher = dispatcherWith(2500, 1000);
  const found = await listAll<number>(dispatcher, ["datasets"], "datasets", { dag: "shop" });
  expect(found.items).toEqual(Array.from({ length: 2500 }, (_, n) => n));
  expect(found.more).toBe(false);
  expect(dispatcher.asked.map((each) => [each.dag, each.after])).toEqual([
    ["shop", null],
    ["shop", "1000"],
    ["shop", "2000"],
  ]);
});

test("a list beyond the bound says that there are more", async () => {
  const found = await listAll<number>(dispatcherWith(30, 10), ["datasets"], "datasets", {}, 25);
  expect(found.items).toHaveLength(25);
  expect(found.more).toBe(true);
});

test("a list that ends at the bound says that this is all", async () => {
  expect((await listAll(dispatcherWith(20, 10), ["datasets"], "datasets", {}, 20)).more).toBe(false);
});
