/** Object keys, as qo.core.keys spells them. Nothing else in the page does. */

import { micros } from "./instant";
import type { Task } from "./task";

export const TASKS = "tasks/";
export const READY = "ready/";
export const LEASES = "leases/";
export const WAITING = "waiting/";
export const INBOX = "inbox/";
export const WORKERS = "workers/";
export const SCHEDULES = "schedules/";
export const SHARD_LEASES = "shard-leases/";
export const SHARD_PLAN = `${SHARD_LEASES}plan.json`;
export const QUEUE = "queue.json";
export const DESIRED = "control/desired.json";
export const BOARD = "control/board.json";

const PRIORITY_HEAD_START_MIN = 10;
const ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
const TASK_ID = new RegExp(`^${ID}$`);
const TASK_KEY = new RegExp(`^tasks/([0-9a-f]{1,4})/(${ID})\\.json$`);
const INBOX_KEY = new RegExp(`^inbox/[A-Za-z0-9][A-Za-z0-9._-]{0,99}/([0-9]{10})/(${ID})$`);
const INDEX_KEY = new RegExp(`^(?!inbox/)[^/]+/([0-9a-f]{1,4})/([0-9]{10})(?:\\.([0-9]{10}))?/(${ID})$`);

export interface IndexKey {
  shard: string;
  minute: number;
  dueMinute: number;
  taskId: string;
}

/** The id in its one spelling, or null: everything that becomes part of a key passes through here. */
export function taskIdOf(text: string): string | null {
  const lowered = text.trim().toLowerCase();
  return TASK_ID.test(lowered) ? lowered : null;
}

export function shardOf(taskId: string, prefixLen: number): string {
  return taskId.slice(0, prefixLen);
}

export function taskKey(shard: string, taskId: string): string {
  return `${TASKS}${shard}/${taskId}.json`;
}

/** Shard and id of a key under tasks/, or null if something else lies there. */
export function parseTask(key: string): { shard: string; taskId: string } | null {
  const matched = TASK_KEY.exec(key);
  return matched ? { shard: matched[1]!, taskId: matched[2]! } : null;
}

export function minuteOf(at: string): number {
  return Math.floor((micros(at) ?? 0) / 60e6);
}

/** Where a pending task stands in line: priority is a head start. */
function readyMinute(task: Task): number {
  return minuteOf(task.available_at) - task.priority * PRIORITY_HEAD_START_MIN;
}

function index(prefix: string, shard: string, minute: number, taskId: string, dueMinute = minute): string {
  const digits = (each: number) => String(each).padStart(10, "0");
  const due = dueMinute === minute ? "" : `.${digits(dueMinute)}`;
  return `${prefix}${shard}/${digits(minute)}${due}/${taskId}`;
}

/** What is not due yet has its due minute beside its place, so that workers pass it over. */
function readyKey(task: Task): string {
  const place = readyMinute(task);
  const ahead = micros(task.available_at)! > micros(task.updated_at)!;
  return index(READY, task.shard, place, task.id, ahead ? minuteOf(task.available_at) : place);
}

/** What was routed to one worker waits in the inbox of that one. */
function inboxKey(worker: string, task: Task): string {
  return `${INBOX}${worker}/${String(readyMinute(task)).padStart(10, "0")}/${task.id}`;
}

/** The one hint that a task should have: where it waits for a worker or for other tasks, when its lease ends, or none. */
export function indexKey(task: Task): string | null {
  if (task.status === "pending" && task.flow?.waits_for.length)
    return index(WAITING, task.shard, minuteOf(task.available_at), task.id);
  if (task.status === "pending") return task.inbox === null ? readyKey(task) : inboxKey(task.inbox, task);
  if (task.status === "running" && task.lease_expires_at !== null)
    return index(LEASES, task.shard, minuteOf(task.lease_expires_at), task.id);
  return null;
}

/** A hint of any index. That of an inbox does not tell the shard, which is how the id begins. */
export function parseHint(key: string, prefixLen: number): IndexKey | null {
  const matched = INBOX_KEY.exec(key);
  if (!matched) return parseIndex(key);
  const [minute, taskId] = [Number(matched[1]), matched[2]!];
  return { shard: shardOf(taskId, prefixLen), minute, dueMinute: minute, taskId };
}

export function parseIndex(key: string): IndexKey | null {
  const matched = INDEX_KEY.exec(key);
  if (!matched) return null;
  const [, shard, minute, due, taskId] = matched;
  return { shard: shard!, minute: Number(minute), dueMinute: Number(due ?? minute), taskId: taskId! };
}

export function workerKey(workerId: string): string {
  return `${WORKERS}${workerId}.json`;
}

export function scheduleKey(name: string): string {
  return `${SCHEDULES}${name}.json`;
}

export function allShards(prefixLen: number): string[] {
  return Array.from({ length: 16 ** prefixLen }, (_, n) => n.toString(16).padStart(prefixLen, "0"));
}
