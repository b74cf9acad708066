import { expect, test } from "vitest";
import { progressMatters, shareOf } from "./progress";

test.each([
  [
    { phase: "writing", stages: { done: 1, total: 2 }, tasks: { done: 30, total: 200, active: 4 } },
    [30, 200, "writing: 30 of 200 Spark tasks, 4 of them running, 1 of 2 stages"],
  ],
  [
    { phase: "writing", tasks: { done: 3, total: 9, active: 0 }, waiting: "waits for Spark executors" },
    [3, 9, "writing: 3 of 9 Spark tasks · waits for Spark executors"],
  ],
  [{ done: 7, total: 5 }, [5, 5, "7 of 5"]],
  [0.25, [0.25, 1, "done"]],
  [{ percent: 40, text: "resizing" }, [40, 100, "resizing"]],
])("%j is a share", (progress, [done, of, what]) => {
  expect(shareOf(progress)).toMatchObject({ done, of, what });
});

test.each([null, "half way", 7, [], {}, { phase: "reading" }, { done: 1, total: 0 }, { percent: 400 }])(
  "%j is none",
  (progress) => expect(shareOf(progress)).toBeNull(),
);

test("of what is completed, no share is shown, and words are", () => {
  const spark = { phase: "writing", tasks: { done: 2, total: 3 } };
  expect(progressMatters(spark, "running")).toBe(true);
  expect(progressMatters(spark, "completed")).toBe(false);
  expect(progressMatters("42 rows", "completed")).toBe(true);
  expect(progressMatters(null, "running")).toBe(false);
});
