import { expect, test } from "vitest";
import type { GraphNode } from "./graph";
import { declaredGroups, drawGroups, groupsOf } from "./grouping";

const names = ["raw", "stage_a", "stage_b", "stage_c", "mart_a", "mart_b", "report"];
const nodes: GraphNode[] = names.map((id) => ({
  id,
  title: id,
  lines: [],
  href: "",
  counts: id === "stage_b" ? { failed: 1, completed: 2 } : { completed: 1 },
}));
const edges = [
  { from: "raw", to: "stage_a" },
  { from: "raw", to: "stage_b", live: true },
  { from: "stage_a", to: "stage_c" },
  { from: "stage_c", to: "mart_a" },
];

test("names that begin alike are a group, if there are enough of them", () => {
  expect([...groupsOf(names).keys()]).toEqual(["stage"]);
});

test("a group stands for its members, with their counts and edges", () => {
  const drawn = drawGroups(nodes, edges, "on", (group) => `open ${group}`);
  expect(drawn.nodes.map((each) => each.id)).toEqual(["raw", "mart_a", "mart_b", "report", "group stage"]);
  const group = drawn.nodes.at(-1)!;
  expect([group.counts, group.class, group.href]).toEqual([
    { completed: 4, failed: 1 },
    "group failed",
    "open stage",
  ]);
  expect(drawn.edges).toEqual([
    { from: "raw", to: "group stage", live: true },
    { from: "group stage", to: "mart_a", live: false },
  ]);
});

test("an open group is drawn one by one", () => {
  expect(drawGroups(nodes, edges, "stage", () => "").nodes).toHaveLength(names.length);
});

test("groups that jobs declare count instead of their names", () => {
  const declared = nodes.map((each) => ({ ...each, group: each.id.endsWith("_a") ? "Ada's" : null }));
  expect([...declaredGroups(declared)]).toEqual([["Ada's", ["stage_a", "mart_a"]]]);
  const drawn = drawGroups(declared, edges, "on", () => "").nodes;
  expect(drawn.map((each) => each.title)).toEqual(["raw", "stage_b", "stage_c", "mart_b", "report", "Ada's"]);
  expect(drawn.at(-1)!.lines[0]).toBe("2 jobs");
});
