/**
 * The keys below a prefix, learned a few pages at a time.
 *
 * A listing is in order of key, and the keys of tasks begin with random ids. So nothing short of listing everything
 * finds what changed last, and that is a request for each thousand. A catalogue therefore has a budget for each round:
 * it goes on where it stopped, wraps around, and is right about everything it has passed since. For the same reason the
 * part of the ids that it has passed tells how many there are: the first pages are a fair sample.
 */

import type { Bucket } from "../s3/client";
import type { Entry } from "../s3/replies";

export const PAGES_PER_ROUND = 4;

export class Catalogue {
  readonly entries = new Map<string, Entry>();
  private after = ""; // Where the next page begins.
  private passed = false; // A whole pass has been made.
  private turn: Promise<void> | null = null;
  private wanted = 0; // Pages, by whoever wants most of those who wait for this turn.

  constructor(
    private readonly bucket: Bucket,
    readonly prefix: string,
    private readonly shard = "", // What the prefix ends with, if it is that of one shard or a group of them.
  ) {}

  /** Whether everything has been listed at least once. */
  get complete(): boolean {
    return this.passed;
  }

  /** How many there are: exact once complete, else reckoned from how much of the ids was passed. */
  get size(): { count: number; exact: boolean } {
    const count = this.entries.size;
    if (this.passed || count === 0) return { count, exact: this.passed };
    const share = shareWithin(this.shard, shareOf(this.after.slice(this.prefix.length - this.shard.length)));
    return { count: share > 0 ? Math.max(count, Math.round(count / share)) : count, exact: false };
  }

  /** Requests that a full pass takes from here. */
  get pagesLeft(): number {
    return this.passed ? 0 : Math.max(1, Math.ceil((this.size.count - this.entries.size) / 1000));
  }

  /** List on, so many pages at most. Two that ask at once share the work. */
  advance(pages = PAGES_PER_ROUND): Promise<void> {
    this.wanted = Math.max(this.wanted, pages);
    this.turn ??= this.walk().finally(() => {
      this.turn = null;
      this.wanted = 0;
    });
    return this.turn;
  }

  private async walk(): Promise<void> {
    for (let n = 0; n < this.wanted; n += 1) {
      const from = this.after;
      const page = await this.bucket.list(this.prefix, from);
      const last = page.entries.at(-1)?.key ?? "";
      this.replace(from, page.truncated ? last : null, page.entries);
      this.after = page.truncated ? last : "";
      if (!page.truncated) {
        this.passed = true;
        return;
      }
    }
  }

  /** What was listed behind `from`, up to and including `upto`, is now exactly this. */
  private replace(from: string, upto: string | null, listed: Entry[]): void {
    const there = new Set(listed.map((entry) => entry.key));
    if (this.passed)
      for (const key of this.entries.keys())
        if (key > from && (upto === null || key <= upto) && !there.has(key)) this.entries.delete(key);
    for (const entry of listed) this.entries.set(entry.key, entry);
  }

  /** Newest change first. */
  recent(): Entry[] {
    return [...this.entries.values()].sort((a, b) => b.modified - a.modified || (a.key < b.key ? 1 : -1));
  }
}

/** Which share of a shard's ids, or of a group of shards, lies before a place that is given as a share of all. */
export function shareWithin(shard: string, share: number): number {
  if (!shard) return share;
  const parts = 16 ** shard.length;
  return Math.min(1, Math.max(0, share * parts - Number.parseInt(shard, 16)));
}

/** Which share of all ids lies before a key: `a/a1b2c3d4-...` lies 63 % of the way. */
export function shareOf(key: string): number {
  const id = key.split("/").at(-1) ?? "";
  const head = /^[0-9a-f]{8}/.exec(id)?.[0];
  if (head) {
    const share = (Number.parseInt(head, 16) + 1) / 2 ** 32;
    if (!/^\d{10}$/.test(key.split("/")[1] ?? "")) return share;
  }
  // An index key: its shard is all that tells, and within one nothing does.
  const shard = key.split("/")[0] ?? "";
  return /^[0-9a-f]{1,4}$/.test(shard) ? (Number.parseInt(shard, 16) + 0.5) / 16 ** shard.length : 0;
}
