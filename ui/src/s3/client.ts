/** The part of S3 that this page uses, on one bucket or the part of it below a prefix. */

import { fromS3, Problem, unreachable } from "./problem";
import { errorOf, folders, listPage, type Page, type VersionsPage, versionsPage } from "./replies";
import { type Keys, path, queryText, signed } from "./signing";
import { StoreTime } from "./storetime";

export interface Stored {
  text: string;
  etag: string;
}

export interface Place {
  endpoint: string;
  bucket: string;
  prefix: string;
  region: string;
}

export interface Condition {
  ifMatch?: string;
  ifAbsent?: boolean;
}

interface Reply {
  status: number;
  text: string;
  etag: string;
}

export const LIST_MAX = 1000;
const PATIENCE_MS = 20_000;
const AT_ONCE = 16; // Requests under way; browsers have fewer connections anyway.

export class Bucket {
  readonly time = new StoreTime();
  requests = 0; // Sent since the page was opened, for the footer: looking is not free.
  private underWay = 0;
  private readonly waiting: (() => void)[] = [];

  constructor(
    private readonly place: Place,
    private readonly keys: () => Keys,
    private readonly send: typeof fetch = (...args) => fetch(...args),
  ) {}

  /** All keys below a prefix, from so many pages at most; `truncated` if there are more. */
  async listAll(prefix: string, pages: number): Promise<Page> {
    let page = await this.list(prefix);
    const entries = page.entries;
    for (let n = 1; n < pages && page.truncated; n += 1) {
      page = await this.list(prefix, page.entries.at(-1)?.key);
      entries.push(...page.entries);
    }
    return { ...page, entries };
  }

  async list(prefix: string, after = "", limit = LIST_MAX): Promise<Page> {
    const query: [string, string][] = [
      ["list-type", "2"],
      ["max-keys", String(limit)],
      ["prefix", this.place.prefix + prefix],
    ];
    if (after) query.push(["start-after", this.place.prefix + after]);
    const reply = await this.ask("GET", null, query, `listing ${prefix}`);
    return listPage(reply.text, this.place.prefix);
  }

  /** What lies directly below a prefix, as folders: one page. */
  async folders(prefix: string): Promise<string[]> {
    const query: [string, string][] = [
      ["list-type", "2"],
      ["delimiter", "/"],
      ["prefix", this.place.prefix + prefix],
    ];
    const reply = await this.ask("GET", null, query, `listing ${prefix}`);
    return folders(reply.text, this.place.prefix);
  }

  /** The object, or null if there is none. */
  async get(key: string, version?: string): Promise<Stored | null> {
    const query: [string, string][] = version === undefined ? [] : [["versionId", version]];
    const reply = await this.ask("GET", key, query, `reading ${key}`, { missing: true });
    return reply.status === 404 ? null : { text: reply.text, etag: reply.etag };
  }

  /** The versions of a key, newest first: one page. */
  async versions(key: string, from?: { key: string; version: string }): Promise<VersionsPage> {
    const query: [string, string][] = [
      ["versions", ""],
      ["prefix", this.place.prefix + key],
      ["max-keys", "1000"],
    ];
    if (from) query.push(["key-marker", from.key], ["version-id-marker", from.version]);
    const reply = await this.ask("GET", null, query, `the history of ${key}`);
    return versionsPage(reply.text, this.place.prefix + key);
  }

  /** Write, if the condition holds, and return the ETag. Raises a Problem of kind `moved` if it does not hold. */
  async put(key: string, text: string, condition: Condition = {}): Promise<string> {
    const headers: Record<string, string> = {};
    if (condition.ifMatch !== undefined) headers["if-match"] = condition.ifMatch;
    if (condition.ifAbsent) headers["if-none-match"] = "*";
    return (await this.ask("PUT", key, [], `writing ${key}`, { headers, body: text })).etag;
  }

  async remove(key: string): Promise<void> {
    await this.ask("DELETE", key, [], `removing ${key}`, { missing: true });
  }

  private async ask(
    method: string,
    key: string | null,
    query: [string, string][],
    what: string,
    more: { headers?: Record<string, string>; body?: string; missing?: boolean } = {},
  ): Promise<Reply> {
    await this.turn();
    try {
      return await this.exchange(method, key, query, what, more);
    } finally {
      this.underWay -= 1;
      this.waiting.shift()?.();
    }
  }

  private async exchange(
    method: string,
    key: string | null,
    query: [string, string][],
    what: string,
    more: { headers?: Record<string, string>; body?: string; missing?: boolean },
    corrected = false,
  ): Promise<Reply> {
    const base = this.place.endpoint.replace(/\/$/, "");
    const tail = key === null ? "" : `/${path(this.place.prefix + key)}`;
    const url = new URL(`${base}/${path(this.place.bucket)}${tail}`);
    const body = new TextEncoder().encode(more.body ?? "");
    const unsigned = { method, url, query, headers: more.headers ?? {}, body };
    const headers = await signed(unsigned, this.keys(), this.place.region, new Date(this.time.now() * 1000));
    const address = query.length ? `${url.href}?${queryText(query)}` : url.href;
    const sent = this.time.mark();
    this.requests += 1;
    let response: Response;
    try {
      response = await this.send(address, {
        method,
        headers,
        ...(method === "PUT" ? { body } : {}),
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
        referrerPolicy: "no-referrer",
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
    } catch {
      throw unreachable(url.host);
    }
    this.time.observe(sent, response.headers.get("date"));
    const text = await response.text().catch(() => Promise.reject(unreachable(url.host)));
    if (response.ok) return { status: response.status, text, etag: response.headers.get("etag") ?? "" };
    const said = errorOf(text);
    const code = said?.code ?? "";
    // The reply says what time it is there. Signed by that clock, the same request is good; it was not acted on.
    if (code === "RequestTimeTooSkewed" && !corrected && this.time.known)
      return this.exchange(method, key, query, what, more, true);
    if (response.status === 404 && more.missing && code !== "NoSuchBucket")
      return { status: 404, text: "", etag: "" };
    throw fromS3(response.status, code, said?.message ?? "", what);
  }

  private async turn(): Promise<void> {
    while (this.underWay >= AT_ONCE) await new Promise<void>((go) => this.waiting.push(go));
    this.underWay += 1;
  }
}

export { Problem };
