/** How far a backfill is. */

import type { Backfill } from "../dispatcher/answers";

export interface Progress {
  done: number;
  failed: number;
  open: number;
  total: number; // Known so far.
}

export function progressOf(backfill: Backfill): Progress {
  const { tasks, made, left } = backfill;
  const [done, failed] = [tasks.completed ?? 0, tasks.failed ?? 0];
  return { done, failed, open: Math.max(0, made - done - failed - (tasks.cancelled ?? 0)), total: made + left };
}

/** In words: from and to which keys. */
export function rangeOf({ from_key, to_key }: Backfill): string {
  if (from_key === null && to_key === null) return "all partitions";
  if (from_key === to_key) return from_key!;
  return `${from_key ?? "the first"} to ${to_key ?? "the last"}`;
}
