/** Lists that come in pages, followed to their end, or to a bound that the reader is told of. */

import type { Dispatcher, Query } from "./client";

const PAGE = 1000; // The most that the dispatcher gives at once.
export const LISTED_MAX = 5000; // More rows than anybody reads, and a handful of requests for each look.

export interface Listed<T> {
  items: T[];
  more: boolean; // Whether there are more than the bound.
}

/** All items of a list. `key`: under which name a page has them. */
export async function listAll<T>(
  dispatcher: Pick<Dispatcher, "get">,
  path: string[],
  key: string,
  query: Query = {},
  most = LISTED_MAX,
): Promise<Listed<T>> {
  const items: T[] = [];
  let after: string | null = null;
  do {
    const limit = Math.min(PAGE, most - items.length);
    const page: Record<string, unknown> = await dispatcher.get(path, { ...query, after, limit });
    items.push(...(page[key] as T[]));
    after = (page.next as string | null | undefined) ?? null;
  } while (after !== null && items.length < most);
  return { items, more: after !== null };
}
