/**
 * The board (control/board.json), as qo.core.board has it: workers read it every few seconds, and learn from it which
 * tasks are new and whether orders have changed. A change returns the new text, or null if there is nothing to write.
 */

import { members, patched } from "./document";
import { iso, micros } from "./instant";
import type { Task } from "./task";

interface Notice {
  task: string;
  hint: string; // The key of its ready hint.
  due: string;
  at: string;
  etag?: string;
  number?: number;
}

interface Board {
  sequence: number;
  floor: number;
  notices: Notice[];
  orders: string;
}

const NOTICES_MAX = 64;
const AHEAD_US = 60e6; // A task that is due later is announced by the lookout, in time.

/** The text with a notice of a task that can be claimed, instead of an older one; `etag` is that of its ready hint. */
export function withNotice(
  text: string,
  task: Task,
  hint: string,
  etag: string,
  now: number,
  token: string,
): string | null {
  const board = readBoard(text);
  if (board === null || micros(task.available_at)! > micros(task.updated_at)! + AHEAD_US) return null;
  const number = board.sequence + 1;
  const notice: Notice = { task: task.id, hint, due: task.available_at, at: iso(now), number };
  if (etag) notice.etag = etag;
  const all = [...board.notices.filter((each) => each.task !== task.id), notice];
  const dropped = all.slice(0, -NOTICES_MAX).map((each) => each.number ?? 0);
  const floor = Math.max(board.floor, ...dropped);
  const moved = floor > board.floor ? { floor } : {};
  return patched(text, { sequence: number, ...moved, notices: all.slice(-NOTICES_MAX), token });
}

/** The text with the token of the latest orders, which workers then read. */
export function withOrders(text: string, orders: string, token: string): string | null {
  const board = readBoard(text);
  return board === null || board.orders === orders ? null : patched(text, { orders, token });
}

/** Null if a worker could not read it either: the lookout replaces it. */
function readBoard(text: string): Board | null {
  try {
    members(text);
    const found = { sequence: 0, floor: 0, notices: [], orders: "", ...(JSON.parse(text) as Partial<Board>) };
    const counts = [found.sequence, found.floor].every((each) => Number.isSafeInteger(each) && each >= 0);
    return counts && Array.isArray(found.notices) && typeof found.orders === "string" ? found : null;
  } catch {
    return null;
  }
}
