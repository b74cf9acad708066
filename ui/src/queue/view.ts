/** The queue as the pages see it: what was learned stays while one goes from page to page, in memory. */

import { INBOX, LEASES, parseHint, QUEUE, READY, TASKS } from "../core/keys";
import type { Bucket } from "../s3/client";
import { Problem } from "../s3/problem";
import { Catalogue } from "./catalogue";
import { Plans } from "./owners";
import { Roster } from "./roster";
import { Shelf } from "./shelf";

export interface Manifest {
  shard_prefix_len: number;
  created_at: string;
  proof: { server: string; proven_at: string; versioned: boolean } | null;
}

export interface Sample {
  at: number;
  waiting: number;
  running: number;
  completed: number; // By all workers that were seen, since they began.
}

const SAMPLES_MAX = 720;

export class QueueView {
  readonly shelf: Shelf;
  readonly roster: Roster;
  readonly plans: Plans;
  readonly samples: Sample[] = [];
  private readonly catalogues = new Map<string, Catalogue>();
  private found: Promise<Manifest> | null = null;

  /** `silentMaxS`: after how long operators want a silent worker called stale; null: as its own heartbeat has it. */
  constructor(
    readonly bucket: Bucket,
    readonly silentMaxS: number | null = null,
  ) {
    this.shelf = new Shelf(bucket);
    this.roster = new Roster(bucket);
    this.plans = new Plans(bucket);
  }

  /** queue.json: asked for once, because it never changes what matters here. */
  manifest(): Promise<Manifest> {
    this.found ??= this.load().catch((error: unknown) => {
      this.found = null;
      throw error;
    });
    return this.found;
  }

  private async load(): Promise<Manifest> {
    const stored = await this.bucket.get(QUEUE);
    if (stored === null)
      throw new Problem(
        "missing",
        "There is no queue here: the bucket has no queue.json.",
        "Run `qo doctor` once, or submit a first task with `qo submit`.",
      );
    return JSON.parse(stored.text) as Manifest;
  }

  tasks(shard = ""): Catalogue {
    return this.catalogue(TASKS, shard);
  }

  ready(shard = ""): Catalogue {
    return this.catalogue(READY, shard);
  }

  /** Of all workers, whatever shard: their keys do not tell it. */
  inboxes(): Catalogue {
    return this.catalogue(INBOX, "");
  }

  leases(shard = ""): Catalogue {
    return this.catalogue(LEASES, shard);
  }

  private catalogue(prefix: string, shard: string): Catalogue {
    const whole = prefix + shard; // Without a slash: the first characters of a shard stand for all that begin so.
    let found = this.catalogues.get(whole);
    if (!found) {
      found = new Catalogue(this.bucket, whole, shard);
      this.catalogues.set(whole, found);
    }
    return found;
  }

  note(sample: Sample): void {
    this.samples.push(sample);
    if (this.samples.length > SAMPLES_MAX) this.samples.shift();
  }
}

export interface Line {
  due: number;
  later: number;
  oldestS: number | null; // Since when the first of the due ones has been waiting, among what was listed.
  byShard: Map<string, number>;
}

/** What one index, or more, say of who waits (or runs), by their keys alone. */
export function lineOf(catalogues: Catalogue[], now: number, prefixLen: number): Line {
  const minute = Math.floor(now / 60);
  const line: Line = { due: 0, later: 0, oldestS: null, byShard: new Map() };
  for (const { key, modified } of catalogues.flatMap((each) => [...each.entries.values()])) {
    const parsed = parseHint(key, prefixLen);
    if (!parsed) continue;
    line.byShard.set(parsed.shard, (line.byShard.get(parsed.shard) ?? 0) + 1);
    if (parsed.dueMinute > minute) {
      line.later += 1;
      continue;
    }
    line.due += 1;
    // Priority puts a task further forward than it has waited; its hint was written when it began to.
    const since = Math.max(parsed.dueMinute * 60, modified);
    if (line.oldestS === null || since < line.oldestS) line.oldestS = since;
  }
  return line;
}
