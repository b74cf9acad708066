/** Routes in the fragment: #/tasks?status=failed. The address alone says what is shown, so links can be passed on. */

import { useEffect, useState } from "preact/hooks";

export interface Route {
  path: string[]; // ["task", "ID"]
  query: Record<string, string>;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

/**
 * The fragment of a route. Empty values are left out: they are what one gets without them. Which queue one looks at goes
 * along from page to page, unless another is named.
 */
export function href(path: string[], query: Record<string, string | null | undefined> = {}): string {
  const said = Object.entries({ queue: parseRoute(location.hash).query.queue, ...query }).filter(
    (each): each is [string, string] => Boolean(each[1]),
  );
  const tail = said.length ? `?${new URLSearchParams(said)}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${tail}`;
}

export function go(path: string[], query: Record<string, string | null | undefined> = {}): void {
  location.hash = href(path, query);
}

/** Change the question without a new entry in the history: one does not want to go back through every keystroke. */
export function amend(path: string[], query: Record<string, string | null | undefined>): void {
  history.replaceState(null, "", href(path, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const follow = (): void => setHash(location.hash);
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return parseRoute(hash);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // A stray % in an address that was typed.
  }
}
