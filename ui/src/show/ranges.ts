/** Ranges of partitions over jobs: what a cell shows and says, where it lies, and where keys lead. */

import type { GridRanges, GridState, RangeCounts } from "../dispatcher/answers";
import { count, plural } from "./text";

export interface Spot {
  row: number;
  column: number;
}

export const STATES: readonly GridState[] = ["done", "running", "waiting", "failed"];
const COARSE = 0.1; // A job of months has a thirtieth of the keys of one of days: it is compared with itself.

export type Shares = Record<GridState, number>;

/** How much of a cell each state fills: 0 to 1, all together at most 1. */
export function sharesOf(answer: GridRanges, row: RangeCounts, column: number): Shares {
  const whole = Math.max(1, wholeOf(answer, row, column));
  const open = row.running[column]! + row.waiting[column]! + row.failed[column]!;
  // What is made again is both committed and open; people must see that it is open.
  const done = Math.min(row.done[column]!, Math.max(0, whole - open));
  const sum = Math.max(whole, done + open);
  return {
    done: done / sum,
    running: row.running[column]! / sum,
    waiting: row.waiting[column]! / sum,
    failed: row.failed[column]! / sum,
  };
}

function wholeOf(answer: GridRanges, row: RangeCounts, column: number): number {
  const keys = answer.ranges[column]!.keys;
  const most = Math.max(
    ...row.done.map((done, n) => Math.max(done, row.running[n]! + row.waiting[n]! + row.failed[n]!)),
  );
  const longest = Math.max(...answer.ranges.map((each) => each.keys));
  return most < COARSE * longest ? most : keys;
}

export function sayRange(answer: GridRanges, column: number): string {
  const { first, last, keys } = answer.ranges[column]!;
  return first === last ? first : `${first} to ${last}, ${plural(keys, "key")}`;
}

export function sayCell(answer: GridRanges, spot: Spot): string {
  const row = answer.rows[spot.row]!;
  const some = STATES.filter((state) => row[state][spot.column]! > 0);
  const counts = some.map(
    (state) => `${row.at_least && state !== "done" ? "at least " : ""}${count(row[state][spot.column]!)} ${state}`,
  );
  return `${row.job}, ${sayRange(answer, spot.column)}: ${counts.join(", ") || "nothing yet"}`;
}

/** The cell of a job and a key, as an address names it. */
export function spotOf(answer: GridRanges, job: string, key: string): Spot | null {
  const row = answer.rows.findIndex((each) => each.job === job);
  const column = answer.ranges.findIndex((each) => each.first === key || each.last === key);
  return row < 0 || column < 0 ? null : { row, column };
}

/** Where a key of the keyboard leads; null: it is none of the map. */
export function stepped(at: Spot, key: string, rows: number, columns: number): Spot | null {
  const within = (row: number, column: number): Spot => ({
    row: Math.min(rows - 1, Math.max(0, row)),
    column: Math.min(columns - 1, Math.max(0, column)),
  });
  switch (key) {
    case "ArrowLeft":
      return within(at.row, at.column - 1);
    case "ArrowRight":
      return within(at.row, at.column + 1);
    case "ArrowUp":
      return within(at.row - 1, at.column);
    case "ArrowDown":
      return within(at.row + 1, at.column);
    case "PageUp":
      return within(at.row, at.column + 10);
    case "PageDown":
      return within(at.row, at.column - 10);
    case "Home":
      return within(at.row, 0);
    case "End":
      return within(at.row, columns - 1);
    default:
      return null;
  }
}

/** How many ranges fit beside the names of jobs, each wide enough for a finger or a pointer. */
export function rangesFor(width: number): number {
  if (width < 760) return 24;
  return width < 1100 ? 48 : 80;
}

export function totalOf(answer: GridRanges, state: GridState): number {
  return answer.rows.reduce((sum, row) => sum + row[state].reduce((all, n) => all + n, 0), 0);
}
