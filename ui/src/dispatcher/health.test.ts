import { expect, test } from "vitest";
import { Problem } from "../s3/problem";
import type { PipelineHealth } from "./answers";
import type { Dispatcher } from "./client";
import { conditionOf, listPipelines, sumUp } from "./health";

const QUIET: PipelineHealth = {
  name: "shop",
  active: 1,
  next: null,
  next_status: null,
  paused: null,
  jobs: 3,
  running: 0,
  waiting: 0,
  failed: 0,
  held: 0,
  sources: 1,
  sources_failed: 0,
  published: [],
};

test("the worst thing about a pipeline is what it shows", () => {
  const of = (change: Partial<PipelineHealth>): string => conditionOf({ ...QUIET, ...change });
  expect(of({})).toBe("completed");
  expect(of({ running: 1, waiting: 2 })).toBe("running");
  expect(of({ running: 1, held: 1 })).toBe("held");
  expect(of({ held: 1, late: 1 })).toBe("late");
  expect(of({ held: 1, failed: 1, late: 1 })).toBe("failed");
  expect(of({ sources_failed: 1 })).toBe("failed");
  expect(of({ failed: 1, paused: "" })).toBe("paused");
});

test("sums go over all pipelines", () => {
  expect(sumUp([QUIET, { ...QUIET, next: 2, failed: 2 }])).toEqual({
    running: 0,
    waiting: 0,
    failed: 2,
    held: 0,
    late: 0,
    building: 1,
  });
});

test("a dispatcher of before has pipelines, without their health", async () => {
  const old = {
    get: async (path: string[]) => {
      if (path[0] === "health") throw new Problem("missing", "no such path");
      return { dags: [{ ...QUIET, updated_at: "" }], next: null };
    },
  } as unknown as Dispatcher;
  expect((await listPipelines(old)).items).toMatchObject([{ name: "shop", jobs: 3, failed: 0 }]);
});
