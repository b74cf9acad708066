/** Task objects that were read, remembered by ETag: what has not changed is not read again. */

import { seconds } from "../core/instant";
import { parseHint, parseTask, taskKey } from "../core/keys";
import { readTask, type Status, type Task } from "../core/task";
import type { Bucket } from "../s3/client";
import type { Entry } from "../s3/replies";

/** What lists and counts need of a task. Whole tasks would fill the memory with inputs and outputs. */
export interface Summary {
  id: string;
  shard: string;
  task_type: string;
  status: Status;
  attempt: number;
  created_at: string;
  updated_at: string;
  available_at: string;
  completed_at: string | null;
  lease_expires_at: string | null;
  worker_id: string | null;
  cancel_requested: boolean;
  last_error: string | null;
  priority: number;
}

const KEPT_MAX = 50_000;
const ENDING_S = 5;

export class Shelf {
  private readonly kept = new Map<string, { etag: string; summary: Summary | null }>();

  constructor(private readonly bucket: Bucket) {}

  get size(): number {
    return this.kept.size;
  }

  /** What is known of the object that a listing shows; undefined: it must be read. null: it is no readable task. */
  known(entry: { key: string; etag: string }): Summary | null | undefined {
    const found = this.kept.get(entry.key);
    return found?.etag === entry.etag ? found.summary : undefined;
  }

  /** What was last known of a task, even if it has changed since: good enough to count with. */
  last(key: string): Summary | null | undefined {
    return this.kept.get(key)?.summary;
  }

  /** Read those that are not known, so many at most; the answer is how many were read. */
  async read(entries: Iterable<Entry>, most: number): Promise<number> {
    const wanted: Entry[] = [];
    for (const entry of entries) {
      if (wanted.length >= most) break;
      if (this.known(entry) === undefined) wanted.push(entry);
    }
    await Promise.all(wanted.map((entry) => this.fetch(entry.key, entry.etag)));
    return wanted.length;
  }

  /**
   * The tasks that hints lead to. As long as a hint is the same, so most likely is its task; but a lease that is about to
   * end by what we know has probably been renewed.
   */
  async led(hints: Entry[], now: number, prefixLen: number): Promise<Summary[]> {
    const found = new Map<string, Summary>(); // By id: a stale hint beside a fresh one leads to the same task twice.
    await Promise.all(
      hints.map(async (hint) => {
        const parsed = parseHint(hint.key, prefixLen);
        if (!parsed) return;
        let task = this.known(hint);
        const ending = task?.lease_expires_at && (seconds(task.lease_expires_at) ?? 0) < now + ENDING_S;
        if (task === undefined || ending) {
          task = await this.fetch(taskKey(parsed.shard, parsed.taskId));
          this.kept.set(hint.key, { etag: hint.etag, summary: task });
        }
        if (task) found.set(task.id, task);
      }),
    );
    return [...found.values()];
  }

  private async fetch(key: string, listed?: string): Promise<Summary | null> {
    const stored = parseTask(key) ? await this.bucket.get(key) : null;
    if (this.kept.size > KEPT_MAX) this.kept.clear();
    if (stored === null) {
      if (listed !== undefined) this.kept.set(key, { etag: listed, summary: null });
      return null;
    }
    let summary: Summary | null = null;
    try {
      summary = summaryOf(readTask(stored.text, key));
    } catch {
      // One broken object must not hide all the others.
    }
    // A store that shows this page no ETag still lists them.
    this.kept.set(key, { etag: stored.etag || (listed ?? ""), summary });
    return summary;
  }
}

export function summaryOf(task: Task): Summary {
  return {
    id: task.id,
    shard: task.shard,
    task_type: task.task_type,
    status: task.status,
    attempt: task.attempt,
    created_at: task.created_at,
    updated_at: task.updated_at,
    available_at: task.available_at,
    completed_at: task.completed_at,
    lease_expires_at: task.lease_expires_at,
    worker_id: task.worker_id,
    cancel_requested: task.cancel_requested,
    last_error: task.last_error,
    priority: task.priority,
  };
}
