import { expect, test } from "vitest";
import vectors from "../../vectors/schedules.json";
import { nextRun } from "./cron";
import { micros } from "./instant";

test.each(vectors)("$cron in $timezone after $now", ({ cron, timezone, now, next }) => {
  const planned = nextRun(cron, timezone, new Date(now));
  expect(planned === null ? null : planned.getTime() * 1000).toBe(micros(next));
});
