/**
 * Moving a task, as qo.queue.tasks does: read, decide, write if unmoved, decide again if others wrote first. A write
 * whose reply was lost is recognised by its token. Then the hint that leads to the task, a notice on the board, and away
 * with the old hint.
 */

import { withNotice, withOrders } from "../core/board";
import { withCancel } from "../core/desired";
import { patched } from "../core/document";
import { BOARD, DESIRED, indexKey, READY, shardOf, taskKey } from "../core/keys";
import { type Command, decide, type Verb } from "../core/lifecycle";
import { ENDED, readTask, type Task } from "../core/task";
import type { Bucket, Stored } from "../s3/client";
import { Problem } from "../s3/problem";

const MOVES_MAX = 10;
const SENDS_MAX = 4;
const BOARD_EDITS_MAX = 4;

export interface Said {
  by?: string | null;
  reason?: string | null;
}

/** The task as it stands afterwards. Raises a Problem that says why it may not move. */
export async function move(
  bucket: Bucket,
  prefixLen: number,
  id: string,
  verb: Verb,
  said: Said = {},
): Promise<Task> {
  const key = taskKey(shardOf(id, prefixLen), id);
  const command: Command = { verb, token: drawToken(), ...said };
  let seen = await bucket.get(key);
  for (let n = 0; n < MOVES_MAX; n += 1) {
    if (seen === null) throw new Problem("missing", `There is no task ${id} in this queue.`);
    if (!seen.etag)
      throw new Problem(
        "wrong",
        "The store does not expose ETags to this page, so it cannot write safely.",
        "Run `qo ui deploy` again: its CORS rules expose them.",
      );
    const task = readTask(seen.text, key);
    const decision = decide(task, command, bucket.time.nowUs());
    if ("refused" in decision) throw new Problem("moved", decision.refused);
    if ("done" in decision) return await settled(bucket, task, task, command);
    const text = patched(seen.text, decision.changes);
    const wrote = await write(bucket, key, text, seen.etag, command.token);
    if (wrote === "ours") return await settled(bucket, task, readTask(text, key), command);
    seen = wrote;
  }
  throw new Problem("busy", `Other writers keep changing task ${id}.`, "Try again in a moment.");
}

/** "ours" once the write is in place; otherwise what is there instead. */
async function write(
  bucket: Bucket,
  key: string,
  text: string,
  etag: string | null,
  token: string,
): Promise<"ours" | Stored | null> {
  for (let send = 1; ; send += 1) {
    let problem: Problem;
    try {
      await bucket.put(key, text, etag === null ? { ifAbsent: true } : { ifMatch: etag });
      return "ours";
    } catch (error) {
      if (!(error instanceof Problem) || !["moved", "busy", "offline"].includes(error.kind)) throw error;
      problem = error;
    }
    if (problem.kind !== "moved") await rest(50 * 2 ** send);
    const found = await bucket.get(key);
    if (found !== null && tokenOf(found.text) === token) return "ours";
    if ((found?.etag ?? null) !== etag) return found;
    if (send === SENDS_MAX) throw problem;
    await rest(50 * 2 ** send);
  }
}

async function settled(bucket: Bucket, before: Task, after: Task, command: Command): Promise<Task> {
  const [old, wanted] = [indexKey(before), indexKey(after)];
  try {
    if (wanted !== null && (wanted !== old || before === after)) {
      const etag = await bucket.put(wanted, after.token);
      if (wanted.startsWith(READY))
        await editBoard(bucket, (text, token) => withNotice(text, after, wanted, etag, bucket.time.nowUs(), token));
    }
    // The hint of a task that has ended stays if others wait for it: whoever follows it tells them.
    const awaited = ENDED.has(after.status) && (after.flow?.dependents.length ?? 0) > 0;
    if (old !== null && old !== wanted && !awaited) await bucket.remove(old);
  } catch {
    // Hints are only hints: the task is true, and the sweeper repairs what leads to it.
  }
  if (command.verb === "cancel" && after.status === "running") await tellWorkers(bucket, after.id);
  return after;
}

/** So that the worker need not wait until it renews the lease. Best effort: the task says it, too. */
async function tellWorkers(bucket: Bucket, taskId: string): Promise<void> {
  try {
    let seen = await bucket.get(DESIRED);
    for (let n = 0; n < MOVES_MAX; n += 1) {
      const token = drawToken();
      const text = withCancel(seen?.text ?? null, taskId, bucket.time.nowUs(), token);
      const wrote = await write(bucket, DESIRED, text, seen?.etag ?? null, token);
      if (wrote === "ours") return await editBoard(bucket, (board, own) => withOrders(board, token, own));
      seen = wrote;
    }
  } catch {
    // It learns of it within a renewal.
  }
}

/**
 * Best effort: without a notice, the lookout finds the task some seconds later. There is no board before the first
 * worker, and it is looked for in a listing, because browsers write down every 404 as an error.
 */
async function editBoard(bucket: Bucket, edit: (text: string, token: string) => string | null): Promise<void> {
  try {
    if (!(await bucket.list(BOARD, "", 1)).entries.length) return;
    let seen = await bucket.get(BOARD);
    for (let n = 0; n < BOARD_EDITS_MAX && seen?.etag; n += 1) {
      const token = drawToken();
      const text = edit(seen.text, token);
      if (text === null) return;
      const wrote = await write(bucket, BOARD, text, seen.etag, token);
      if (wrote === "ours") return;
      seen = wrote;
    }
  } catch {
    // Nothing depends on it.
  }
}

function tokenOf(text: string): string | null {
  try {
    return (JSON.parse(text) as { token?: string }).token ?? null;
  } catch {
    return null;
  }
}

export function drawToken(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join(
    "",
  );
}

function rest(ms: number): Promise<void> {
  return new Promise((done) => setTimeout(done, ms * (0.5 + Math.random())));
}
