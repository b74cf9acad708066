/** Workers as they report themselves. A listing dates every report, so only those that changed are read. */

import { type Desired, readDesired } from "../core/desired";
import { seconds } from "../core/instant";
import { DESIRED, WORKERS } from "../core/keys";
import { misfit } from "../core/shape";
import type { Bucket } from "../s3/client";

export interface WorkerInfo {
  worker_id: string;
  started_at: string;
  last_heartbeat: string;
  heartbeat_s: number | null; // How often it reports; null: an older worker, which does not say.
  shards: string[];
  current_tasks: string[];
  tasks_completed: number;
  tasks_failed: number;
  released: number;
  lost: number;
  task_types: string[];
  paused_types: string[];
  state: string;
  slots: number;
  leasing: boolean;
  inbox_until: string | null; // Until when it owns the inbox of its id; null: it has none.
  http: string | null;
  host: string | null;
  pid: number | null;
  requests: number;
  dollars: number;
}

// As qo.queue.roster has them: how long a worker may be silent and still count as alive.
const HEARTBEATS_MISSED_MAX = 4;
const LEASE_HEARTBEATS_MISSED_MAX = 3; // A worker that leases shards loses them sooner.
const SILENT_MIN_S = 10;
const SILENT_UNKNOWN_S = 60;
const LISTS_MAX = 10; // 10,000 workers; beyond, `truncated` says so.
const READS_PER_ROUND = 24;

export class Roster {
  private readonly kept = new Map<string, { etag: string; info: WorkerInfo; readAt: number }>();
  truncated = false;
  unread = 0; // How many are listed whose record was never read.

  constructor(private readonly bucket: Bucket) {}

  /** Look who is there: a LIST for each thousand, and one GET for each that reported since, those not heard of for longest first. */
  async look(reads = READS_PER_ROUND): Promise<WorkerInfo[]> {
    const { entries, truncated } = await this.bucket.listAll(WORKERS, LISTS_MAX);
    this.truncated = truncated;
    const there = new Set(entries.map((entry) => entry.key));
    for (const key of this.kept.keys()) if (!there.has(key)) this.kept.delete(key);
    const changed = entries
      .filter((entry) => entry.key.endsWith(".json") && this.kept.get(entry.key)?.etag !== entry.etag)
      .sort((a, b) => (this.kept.get(a.key)?.readAt ?? 0) - (this.kept.get(b.key)?.readAt ?? 0));
    await Promise.all(
      changed.slice(0, reads).map(async (entry) => {
        const stored = await this.bucket.get(entry.key);
        const info = stored && readWorker(stored.text);
        if (stored && info)
          this.kept.set(entry.key, { etag: stored.etag || entry.etag, info, readAt: performance.now() });
      }),
    );
    this.unread = [...there].filter((key) => key.endsWith(".json") && !this.kept.has(key)).length;
    return this.known();
  }

  /** Those of the last look. */
  known(): WorkerInfo[] {
    return [...this.kept.values()].map((each) => each.info).sort((a, b) => (a.worker_id < b.worker_id ? -1 : 1));
  }
}

const MISSING_FOR_MS = 30_000;
const there = new WeakSet<Bucket>();
const missing = new WeakMap<Bucket, number>(); // Since when, by performance.now().

/**
 * What operators want. Most queues have no such object: then it is looked for now and then only, and in a listing, because
 * browsers write down every 404 as an error.
 */
export async function lookDesired(bucket: Bucket): Promise<Desired> {
  if (!there.has(bucket)) {
    if (performance.now() - (missing.get(bucket) ?? Number.NEGATIVE_INFINITY) < MISSING_FOR_MS)
      return readDesired(null);
    const found = (await bucket.list(DESIRED, "", 1)).entries.length > 0;
    if (!found) {
      missing.set(bucket, performance.now());
      return readDesired(null);
    }
    there.add(bucket);
  }
  const stored = await bucket.get(DESIRED);
  if (stored === null) there.delete(bucket);
  return readDesired(stored?.text ?? null);
}

export function readWorker(text: string): WorkerInfo | null {
  try {
    const found = JSON.parse(text) as Partial<WorkerInfo>;
    if (typeof found.worker_id !== "string" || seconds(found.last_heartbeat) === null) return null;
    if (misfit(found, CHECKED)) return null;
    return { ...DEFAULTS, ...found } as WorkerInfo;
  } catch {
    return null; // One broken record must not hide all the others.
  }
}

export type Health = "active" | "paused" | "leaving" | "stale";

/** `silentMaxS`: as operators set it for all workers; null: as the worker's own heartbeat has it. */
export function healthOf(info: WorkerInfo, now: number, silentMaxS: number | null): Health {
  if (now - (seconds(info.last_heartbeat) ?? 0) > (silentMaxS ?? silentMaxOf(info))) return "stale";
  if (info.state === "paused") return "paused";
  return ["draining", "cancelling", "stopped", "failed"].includes(info.state) ? "leaving" : "active";
}

function silentMaxOf({ heartbeat_s }: WorkerInfo): number {
  return typeof heartbeat_s === "number"
    ? Math.max(SILENT_MIN_S, HEARTBEATS_MISSED_MAX * heartbeat_s)
    : SILENT_UNKNOWN_S;
}

/** How long a worker may be silent and keep the shards that it leases. */
export function leaseSilentMaxOf({ heartbeat_s }: WorkerInfo): number {
  return LEASE_HEARTBEATS_MISSED_MAX * (heartbeat_s || SILENT_UNKNOWN_S);
}

const DEFAULTS: Partial<WorkerInfo> = {
  heartbeat_s: null,
  shards: [],
  current_tasks: [],
  tasks_completed: 0,
  tasks_failed: 0,
  released: 0,
  lost: 0,
  task_types: [],
  paused_types: [],
  state: "running",
  slots: 0,
  leasing: false,
  inbox_until: null,
  http: null,
  host: null,
  pid: null,
  requests: 0,
  dollars: 0,
};

// Numbers or nothing: the one is only shown, the other is looked at where it is used.
const { pid: _pid, heartbeat_s: _heartbeat, ...CHECKED } = DEFAULTS;
