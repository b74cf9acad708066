// @vitest-environment happy-dom

import { expect, test } from "vitest";
import { href, parseRoute } from "./router";

test.each([
  ["#/", { path: [], query: {} }],
  ["", { path: [], query: {} }],
  ["#/tasks?status=failed&type=a%20b", { path: ["tasks"], query: { status: "failed", type: "a b" } }],
  ["#/dataset/shop.orders%5B1%5D", { path: ["dataset", "shop.orders[1]"], query: {} }],
  ["#/why?target=a@b?c", { path: ["why"], query: { target: "a@b?c" } }],
  ["#/task/%", { path: ["task", "%"], query: {} }],
])("%s is read", (hash, route) => expect(parseRoute(hash)).toEqual(route));

test("the queue goes along from page to page, unless another is named", () => {
  history.replaceState(null, "", "#/tasks?queue=queues/python/");
  expect(parseRoute(href(["workers"])).query.queue).toBe("queues/python/");
  expect(parseRoute(href(["workers"], { queue: "" })).query).toEqual({});
  history.replaceState(null, "", "#/");
});

test("what is written is read back", () => {
  const [path, query] = [["dataset", "a/b c"], { partition: "x=1&y", none: "" }];
  expect(parseRoute(href(path, query))).toEqual({ path, query: { partition: "x=1&y" } });
});
