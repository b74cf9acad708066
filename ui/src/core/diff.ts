/** What differs between two JSON values, place by place. */

import { Exact } from "./document";

export interface Difference {
  path: string;
  before: unknown; // undefined: it was not there.
  after: unknown;
}

/** The differences, as people want them: what only names a write comes last. */
export function sortedDiff(before: unknown, after: unknown): Difference[] {
  return diff(before, after).sort((a, b) => Number(a.path === "token") - Number(b.path === "token"));
}

export function diff(before: unknown, after: unknown, path = ""): Difference[] {
  if (same(before, after)) return [];
  if (Array.isArray(before) && Array.isArray(after))
    return range(Math.max(before.length, after.length)).flatMap((n) => diff(before[n], after[n], `${path}[${n}]`));
  if (isObject(before) && isObject(after)) {
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
    return names.flatMap((name) => diff(before[name], after[name], path ? `${path}.${name}` : name));
  }
  return [{ path, before, after }];
}

function same(a: unknown, b: unknown): boolean {
  if (a instanceof Exact || b instanceof Exact) return a instanceof Exact && b instanceof Exact && a.text === b.text;
  if (Object.is(a, b)) return true;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  if (!isObject(a) && !Array.isArray(a)) return false;
  return JSON.stringify(a) === JSON.stringify(b);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Exact);
}

function range(length: number): number[] {
  return Array.from({ length }, (_, n) => n);
}
