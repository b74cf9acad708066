/** The task as stored; docs/reference/task-format.md explains the fields. */

import { micros } from "./instant";
import { unsealed } from "./sealed";
import { misfit } from "./shape";

export const STATUSES = ["pending", "running", "completed", "failed", "cancelled", "expired", "archived"] as const;
export type Status = (typeof STATUSES)[number];

export const ENDED: ReadonlySet<Status> = new Set(["completed", "failed", "cancelled", "expired", "archived"]);
export const FORMAT = 1; // What this page understands. A newer one may mean something else by the same names.

/** How a task is connected with others. */
export interface Flow {
  depends_on: string[];
  on_dependency_failure: string;
  waits_for: string[];
  dependents: string[];
  broken_by: string | null;
  group: string | null;
  turn: number;
}

export interface Task {
  id: string;
  task_type: string;
  shard: string;
  format: number;
  status: Status;
  token: string;
  available_at: string;
  expires_at: string | null;
  priority: number;
  lease_expires_at: string | null;
  input: unknown;
  input_ref: string | null;
  output: unknown;
  output_ref: string | null;
  timeout_seconds: number | null;
  max_retries: number;
  retry_count: number;
  reschedule_count: number;
  deliveries: number;
  created_at: string;
  updated_at: string;
  completed_at: string | null;
  inbox: string | null;
  worker_id: string | null;
  lease_id: string | null;
  attempt: number;
  last_error: string | null;
  traceback: string | null;
  cancel_requested: boolean;
  cancelled_by: string | null;
  cancel_reason: string | null;
  idempotency_key: string | null;
  schedule: string | null;
  archived_from: Status | null;
  progress: unknown;
  flow: Flow | null;
}

export class Unreadable extends Error {}

/** The task in a stored text. Fields that an older qo did not write have their defaults. */
export function readTask(text: string, key: string): Task {
  let found: Partial<Task>;
  try {
    found = JSON.parse(text) as Partial<Task>;
  } catch (error) {
    throw new Unreadable(`${key} is not JSON: ${(error as Error).message}. Check its earlier versions.`);
  }
  if (found === null || typeof found !== "object" || Array.isArray(found))
    throw new Unreadable(`${key} is not a task`);
  if ((found.format ?? FORMAT) > FORMAT)
    throw new Unreadable(`${key} has format ${found.format}; this page reads up to ${FORMAT}. Deploy a newer page.`);
  const broken =
    (typeof found.id !== "string" && "id") ||
    (typeof found.task_type !== "string" && "task_type") ||
    (typeof found.shard !== "string" && "shard") ||
    (typeof found.token !== "string" && "token") ||
    (found.status !== undefined && !STATUSES.includes(found.status) && "status") ||
    (micros(found.available_at) === null && "available_at") ||
    (micros(found.created_at) === null && "created_at") ||
    (micros(found.updated_at) === null && "updated_at") ||
    (!isFlow(found.flow ?? null) && "flow") ||
    (!["number", "undefined"].includes(typeof (found.timeout_seconds ?? undefined)) && "timeout_seconds") ||
    misfit(found, CHECKED);
  if (broken) throw new Unreadable(`${key} is not a task: its ${broken} is missing or wrong`);
  const flow = found.flow ? { ...FLOW, ...found.flow } : null;
  const task = { ...DEFAULTS, ...found, flow } as Task;
  // The page writes from the stored text, never from this value: what is encrypted is replaced only for people.
  return {
    ...task,
    last_error: unsealed(task.last_error),
    traceback: unsealed(task.traceback),
    progress: unsealed(task.progress),
  };
}

const FLOW: Flow = {
  depends_on: [],
  on_dependency_failure: "cancel",
  waits_for: [],
  dependents: [],
  broken_by: null,
  group: null,
  turn: 0,
};

function isFlow(found: unknown): boolean {
  return (
    found === null || (typeof found === "object" && !Array.isArray(found) && misfit(found as object, FLOW) === null)
  );
}

const DEFAULTS: Partial<Task> = {
  format: FORMAT,
  status: "pending",
  expires_at: null,
  priority: 0,
  lease_expires_at: null,
  input: null,
  input_ref: null,
  output: null,
  output_ref: null,
  timeout_seconds: null,
  max_retries: 3,
  retry_count: 0,
  reschedule_count: 0,
  deliveries: 0,
  completed_at: null,
  inbox: null,
  worker_id: null,
  lease_id: null,
  attempt: 0,
  last_error: null,
  traceback: null,
  cancel_requested: false,
  cancelled_by: null,
  cancel_reason: null,
  idempotency_key: null,
  schedule: null,
  archived_from: null,
  progress: null,
};

// A task's own values may be anything, and its limit is a number or nothing.
const { input: _input, output: _output, progress: _progress, timeout_seconds: _limit, ...CHECKED } = DEFAULTS;
