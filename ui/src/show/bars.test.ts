import { expect, test } from "vitest";
import { barAt, moved, pathsOf } from "./bars";

const part = (values: (number | null)[]): { name: string; colour: string; values: (number | null)[] } => ({
  name: "rows",
  colour: "--accent",
  values,
});

test("bars stand on the ground, side by side, and parts on each other", () => {
  const [below, above] = pathsOf([part([1, 3]), part([1, 0])], 2);
  expect(below).toBe("M4.5 66.667h41v33.333h-41zM54.5 0h41v100h-41z");
  expect(above).toBe("M4.5 33.333h41v33.333h-41z");
});

test("values below one fill the chart, too", () => {
  expect(pathsOf([part([0.002])], 1)[0]).toContain("v100h");
});

test("little is seen, and nothing is not", () => {
  expect(pathsOf([part([1, 1_000_000])], 2)[0]).toContain("v2h");
  expect(pathsOf([part([0, null])], 2)).toEqual([""]);
  expect(pathsOf([part([])], 0)).toEqual([""]);
});

test("two hundred bars are one path", () => {
  expect(pathsOf([part(Array.from({ length: 200 }, (_, n) => n))], 200)).toHaveLength(1);
});

test("a place and a key lead to a bar that there is", () => {
  expect([barAt(0, 5), barAt(0.5, 5), barAt(1, 5)]).toEqual([0, 2, 4]);
  expect([moved(0, "ArrowLeft", 5), moved(0, "ArrowRight", 5), moved(1, "End", 5), moved(4, "Home", 5)]).toEqual([
    0, 1, 4, 0,
  ]);
  expect(moved(2, "Enter", 5)).toBeNull();
});
