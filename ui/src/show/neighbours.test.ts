import { expect, test } from "vitest";
import { neighbours } from "./neighbours";

const nodes = ["a", "b", "c", "d", "e", "x"].map((id) => ({ id }));
const edges = [
  ["a", "b"],
  ["b", "c"],
  ["c", "d"],
  ["x", "c"],
  ["b", "e"],
].map(([from, to]) => ({ from: from!, to: to! }));

function near(focus: string, steps: number): string {
  return neighbours(nodes, edges, focus, steps)
    .nodes.map((each) => each.id)
    .join("");
}

test("what is near is upstream and downstream, so many steps", () => {
  expect(near("c", 1)).toBe("bcdx");
  expect(near("c", 2)).toBe("abcdx");
  expect(near("c", 99)).toBe("abcdx"); // Not e: it reads what c reads, and has nothing to do with c.
});

test("edges between what is left are left", () => {
  expect(neighbours(nodes, edges, "b", 1).edges).toEqual([
    { from: "a", to: "b" },
    { from: "b", to: "c" },
    { from: "b", to: "e" },
  ]);
});

test("a circle ends", () => {
  expect(
    neighbours(
      [{ id: "a" }, { id: "b" }],
      [
        { from: "a", to: "b" },
        { from: "b", to: "a" },
      ],
      "a",
      9,
    ).nodes,
  ).toHaveLength(2);
});
