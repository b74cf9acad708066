import { expect, test } from "vitest";
import { monthsOf } from "./months";

test("days make a calendar over the turn of a year, and a gap is within", () => {
  const months = monthsOf(["2025-12-30", "2026-01-02", "2026-02-28"])!;
  expect(months.map((each) => each.month)).toEqual(["2025-12", "2026-01", "2026-02"]);
  const within = (month: number) => months[month]!.days.filter((day) => day.within).length;
  expect([within(0), within(1), within(2)]).toEqual([2, 31, 28]);
});

test.each([[["a", "b"]], [["2026-01-01"]], [["2026-01-01", "2026-01-02T03"]], [["0001-01-01", "2026-01-01"]]])(
  "%j is none",
  (keys) => expect(monthsOf(keys)).toBeNull(),
);
