import { describe, expect, test } from "vitest";
import vectors from "../../vectors/lifecycle.json";
import { patched } from "./document";
import { micros } from "./instant";
import { indexKey, parseTask, taskKey } from "./keys";
import { allowed, decide, type Verb } from "./lifecycle";
import { readTask } from "./task";

describe("what Python decides", () => {
  test.each(vectors.map((vector) => [vector.verb, vector] as const))("the page decides: %s", (_, vector) => {
    const task = readTask(vector.task, vector.key);
    const { verb, token, by, reason } = vector;
    const decision = decide(task, { verb: verb as Verb, token, by, reason }, micros(vector.now)!);
    expect("refused" in decision ? decision.refused : null).toBe(vector.refused);
    expect("done" in decision).toBe(vector.done);
    expect(indexKey(task)).toBe(vector.hint_before);
    expect(taskKey(task.shard, task.id)).toBe(vector.key);
    if ("changes" in decision) {
      const after = patched(vector.task, decision.changes);
      expect(after).toBe(vector.after); // To the letter: also what a careless rewrite would round.
      expect(indexKey(readTask(after, vector.key))).toBe(vector.hint_after);
    }
    const offered = allowed(task).includes(verb as Verb);
    expect(offered && vector.refused !== null, "offers what would be refused").toBe(false);
    if (!offered && task.token !== token) expect("changes" in decision, "hides what would be allowed").toBe(false);
  });
});

test("a key of a task that is none is no task", () => {
  expect(parseTask("tasks/a/folder/")).toBeNull();
  expect(parseTask("tasks/a/a3b1c2d4-0000-4000-8000-00000000000f.json")?.shard).toBe("a");
});
