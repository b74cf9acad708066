import { expect, test } from "vitest";
import { staleCount, staleReasons, staleTitle } from "./stale";

const input = {
  input: "day",
  dataset: "shop.day",
  other_generation: false,
  partition_key: "2024-01-05",
  read_revision: 4,
  revision: 9,
  text: "day has changed since (2024-01-05 was committed again as revision 9)",
};

test("the reasons of a stale partition are told in the words of the dispatcher", () => {
  expect(staleReasons({ stale_inputs: [input] })).toEqual([input.text]);
});

test("an older dispatcher says nothing of staleness, and neither does the page", () => {
  expect(staleReasons({})).toEqual([]);
  expect(staleCount(undefined)).toBe("");
  expect(staleTitle(2, false, undefined)).toBe("2 partitions");
});

test.each([
  [{ partitions: 0, at_least: false }, "5 partitions"],
  [{ partitions: 3, at_least: false }, "5 partitions, 3 stale"],
  [{ partitions: 1000, at_least: true }, "5 partitions, at least 1000 stale"],
  [null, "5 partitions"],
])("%j is told beside the number of partitions", (counted, text) =>
  expect(staleTitle(5, false, counted)).toBe(text),
);
