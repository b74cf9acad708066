/** A task through time: its versions, read once each, told as moves with durations. */

import { seconds } from "../core/instant";
import { readTask, type Task } from "../core/task";
import type { Bucket } from "../s3/client";
import type { Version } from "../s3/replies";

export interface Moment {
  version: Version;
  task: Task;
  text: string;
}

/** One or more versions that tell the same: a renewed lease is no news. */
export interface Step {
  first: Moment;
  last: Moment;
  count: number;
  what: string;
  at: number;
  tookS: number | null; // Until the next step; null: it still goes on.
}

export const READ_AT_FIRST = 60;

export class Timeline {
  private readonly read = new Map<string, Moment | null>();
  private versions: Version[] = [];
  private etag = "";

  constructor(
    private readonly bucket: Bucket,
    private readonly key: string,
  ) {}

  get total(): number {
    return this.versions.length;
  }

  /** The newest versions, oldest first. Asks the store only if the task has another ETag than last time. */
  async look(etag: string, most = READ_AT_FIRST): Promise<Moment[]> {
    if (etag !== this.etag || !this.versions.length) {
      this.versions = [];
      for (let from: { key: string; version: string } | null | undefined; from !== null; ) {
        const page: Awaited<ReturnType<Bucket["versions"]>> = await this.bucket.versions(
          this.key,
          from ?? undefined,
        );
        this.versions.push(...page.versions);
        from = page.next;
      }
      this.etag = etag;
    }
    const wanted = this.versions.slice(0, most);
    await Promise.all(wanted.map((version) => this.fetch(version)));
    return wanted.flatMap((version) => this.read.get(version.versionId) ?? []).reverse();
  }

  private async fetch(version: Version): Promise<void> {
    if (this.read.has(version.versionId)) return; // A version never changes.
    const stored = await this.bucket.get(this.key, version.versionId);
    let moment: Moment | null = null;
    try {
      if (stored) moment = { version, task: readTask(stored.text, this.key), text: stored.text };
    } catch {
      // A version that cannot be read is left out; the others are still true.
    }
    this.read.set(version.versionId, moment);
  }
}

/** The steps of a history, oldest first. */
export function stepsOf(moments: Moment[]): Step[] {
  const steps: Step[] = [];
  for (const [n, moment] of moments.entries()) {
    const before = moments[n - 1]?.task;
    const what = before ? moveBetween(before, moment.task) : moment.task.attempt === 0 ? "submitted" : "as found";
    const last = steps.at(-1);
    if (last && what === "renewed" && (last.what === "renewed" || last.what.startsWith("claimed"))) {
      last.last = moment;
      last.count += 1;
      continue;
    }
    steps.push({
      first: moment,
      last: moment,
      count: 1,
      what,
      at: seconds(moment.task.updated_at) ?? 0,
      tookS: null,
    });
  }
  for (const [n, step] of steps.entries()) {
    const next = steps[n + 1];
    if (next) step.tookS = Math.max(0, next.at - step.at);
  }
  return steps;
}

function moveBetween(before: Task, after: Task): string {
  if (after.status === "running") {
    if (before.status !== "running" || before.lease_id !== after.lease_id)
      return `claimed, attempt ${after.attempt}`;
    return after.cancel_requested && !before.cancel_requested ? "asked to stop" : "renewed";
  }
  if (after.status === "pending") {
    if (before.status === "running") {
      if (after.retry_count > before.retry_count)
        return `failed, retry ${after.retry_count} of ${after.max_retries}`;
      if (after.reschedule_count > before.reschedule_count) return "rescheduled";
      return "released";
    }
    return before.status === "pending" ? "changed" : "replayed";
  }
  if (before.status === "archived") return "unarchived";
  return after.status;
}
