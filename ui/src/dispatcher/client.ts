/** The dispatcher's public HTTP API, with the token that came with the credentials. */

import { Problem, unreachable } from "../s3/problem";

const PATIENCE_MS = 20_000;

export type Query = Record<string, string | number | boolean | null | undefined>;

export class Dispatcher {
  requests = 0;

  constructor(
    readonly base: string,
    private readonly token: () => string | null,
  ) {}

  get<T>(path: string[], query: Query = {}): Promise<T> {
    return this.ask<T>("GET", path, query);
  }

  post<T>(path: string[], body: unknown = {}): Promise<T> {
    return this.ask<T>("POST", path, {}, body);
  }

  put<T>(path: string[], body: unknown): Promise<T> {
    return this.ask<T>("PUT", path, {}, body);
  }

  private async ask<T>(method: string, path: string[], query: Query, body?: unknown): Promise<T> {
    const url = new URL(`${this.base}/v1/${path.map(encodeURIComponent).join("/")}`);
    for (const [name, value] of Object.entries(query))
      if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
    const token = this.token();
    const headers: Record<string, string> = { accept: "application/json" };
    if (token) headers.authorization = `Bearer ${token}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    this.requests += 1;
    let response: Response;
    let answer: unknown;
    try {
      response = await fetch(url, {
        method,
        headers,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
        referrerPolicy: "no-referrer",
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
      answer = await response.json().catch(() => null);
    } catch {
      throw new Problem(
        "offline",
        unreachable(url.host).message,
        "Is `qo dispatcher` (or `qo up`) running, and does it allow this page's address?",
      );
    }
    if (response.ok) return answer as T;
    throw refusal(response.status, answer);
  }
}

/** The dispatcher says itself what was wrong and what to do; only a missing token needs words of ours. */
function refusal(status: number, answer: unknown): Problem {
  const said = (answer ?? {}) as { error?: string; detail?: string[] };
  const text = [said.error ?? `The dispatcher answered ${status}.`, ...(said.detail ?? [])].join(" ");
  if (status === 401)
    return new Problem(
      "forbidden",
      text,
      "Run `qo ui credentials` with a token of the dispatcher, and paste its output.",
    );
  if (status === 403) return new Problem("forbidden", text, "This page's token is read-only.");
  if (status === 404) return new Problem("missing", text);
  if (status === 409) return new Problem("moved", text);
  return new Problem(status >= 500 ? "busy" : "wrong", text);
}
