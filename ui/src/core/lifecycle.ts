/**
 * The moves that operators make, as qo.core.lifecycle decides them. Test vectors that the Python code writes
 * (vectors/lifecycle.json) hold the two together.
 *
 * A decision is the members to change, null if the command has taken effect already, or why it may not.
 */

import { iso, micros } from "./instant";
import { ENDED, type Flow, type Status, type Task } from "./task";

export type Verb = "replay" | "archive" | "unarchive" | "cancel";

export interface Command {
  verb: Verb;
  token: string; // Drawn by the caller; a task that carries it has obeyed already.
  by?: string | null;
  reason?: string | null;
}

export type Decision = { changes: Partial<Task> } | { done: true } | { refused: string };

const REPLAYABLE: ReadonlySet<Status> = new Set(["failed", "cancelled", "expired"]);

/** `now` in microseconds, by the store's clock. */
export function decide(task: Task, command: Command, now: number): Decision {
  if (task.token === command.token) return { done: true };
  switch (command.verb) {
    case "replay":
      return replay(task, command, now);
    case "archive":
      if (task.status === "archived") return { done: true };
      if (!ENDED.has(task.status)) return refuse(task, "wait until it has ended, or cancel it first");
      return written(task, command, now, { status: "archived", archived_from: task.status });
    case "unarchive":
      if (task.status !== "archived") return refuse(task, "only an archived task can be unarchived");
      return written(task, command, now, { status: task.archived_from ?? "failed", archived_from: null });
    case "cancel":
      return cancel(task, command, now);
  }
}

/** What may be done with a task now: what the page offers. */
export function allowed(task: Task): Verb[] {
  const verbs: Verb[] = [];
  if (REPLAYABLE.has(task.status)) verbs.push("replay");
  if (task.status === "pending" || (task.status === "running" && !task.cancel_requested)) verbs.push("cancel");
  if (task.status === "archived") verbs.push("unarchive");
  else if (ENDED.has(task.status)) verbs.push("archive");
  return verbs;
}

function replay(task: Task, command: Command, now: number): Decision {
  if (!REPLAYABLE.has(task.status)) return refuse(task, "only a failed, cancelled or expired task can be replayed");
  return unleased(task, command, now, "pending", {
    available_at: iso(now),
    retry_count: 0,
    reschedule_count: 0,
    deliveries: 0,
    expires_at: null,
    cancel_requested: false,
    cancelled_by: null,
    cancel_reason: null,
    ...(task.flow && { flow: replayed(task.flow) }),
  });
}

/** What is run again waits for its dependencies no more. In its group it keeps its place, or gets in line again. */
function replayed(flow: Flow): Flow {
  const place = flow.waits_for.filter((each) => each === "group" || each.includes("#"));
  if (flow.group === null || place.length > 0) return { ...flow, waits_for: place, broken_by: null };
  return { ...flow, waits_for: ["group"], broken_by: null, turn: flow.turn + 1 };
}

function cancel(task: Task, command: Command, now: number): Decision {
  const said = {
    cancel_requested: true,
    cancelled_by: command.by ?? null,
    cancel_reason: command.reason ?? null,
  };
  if (task.status === "pending") return unleased(task, command, now, "cancelled", said);
  if (task.status === "running") return task.cancel_requested ? { done: true } : written(task, command, now, said);
  if (task.status === "cancelled") return { done: true };
  return refuse(task, "it has ended and cannot be cancelled");
}

function refuse(task: Task, wanted: string): Decision {
  return { refused: `task ${task.id} is ${task.status}; ${wanted}` };
}

function written(task: Task, command: Command, now: number, changes: Partial<Task>): Decision {
  return { changes: { token: command.token, updated_at: later(task, now), ...changes } };
}

function unleased(task: Task, command: Command, now: number, status: Status, changes: Partial<Task>): Decision {
  const ended = status === "pending" ? null : later(task, now);
  return written(task, command, now, {
    status,
    lease_id: null,
    lease_expires_at: null,
    inbox: null,
    worker_id: null,
    completed_at: ended,
    ...changes,
  });
}

/** A clock that was corrected backwards must not make history run backwards. */
function later(task: Task, now: number): string {
  return micros(task.updated_at)! >= now ? task.updated_at : iso(now);
}
