/** Why a task that is due is not claimed, as qo.queue.waiting explains it. */

import { seconds } from "../core/instant";
import type { Task } from "../core/task";
import { healthOf, type WorkerInfo } from "./roster";

const SOON_S = 5; // Until then a task that is due may simply be about to be claimed.

export function isOverdue(task: Task, now: number): boolean {
  return task.status === "pending" && (seconds(task.available_at) ?? now) + SOON_S <= now;
}

/** The reason in words, or null if the task is not due, or a worker could run it. `now` is the store's, in seconds. */
export function whyUnclaimed(
  task: Task,
  workers: WorkerInfo[],
  now: number,
  silentMaxS: number | null,
): string | null {
  if (!isOverdue(task, now)) return null;
  const live = workers.filter((each) => !["stale", "leaving"].includes(healthOf(each, now, silentMaxS)));
  if (live.length === 0) return "no worker is running";
  const able = live.filter((each) => each.task_types.includes(task.task_type));
  if (able.length === 0) return "no running worker has a handler for this type";
  return able.every((each) => each.paused_types.includes(task.task_type)) ? "the type is paused" : null;
}
