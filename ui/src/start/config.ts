/** config.json, which lies beside the page and says where the bucket and the dispatcher are. No secrets. */

import { Problem } from "../s3/problem";

export interface Config {
  endpoint: string;
  bucket: string;
  prefix: string;
  region: string;
  dispatcher: string | null;
  version: string;
  queues: string[] | null; // Prefixes of further queues below this one; null: the page looks for them.
  silentMaxS: number | null; // After how long operators want a worker called stale; null: as its heartbeat has it.
  aheadMs: number; // By how much the server's clock is ahead of ours, to a second or so.
}

/** Where the queue of a runtime lies, below the whole. */
export const QUEUE = /^queues\/[^/]+\/$/;

export async function loadConfig(): Promise<Config> {
  let found: unknown;
  let aheadMs = 0;
  try {
    const reply = await fetch(new URL("config.json", document.baseURI), { cache: "no-cache" });
    if (!reply.ok) throw new Error(`it answered ${reply.status}`);
    aheadMs = ahead(reply.headers, Date.now());
    found = await reply.json();
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new Problem(
      "wrong",
      `config.json, which must be next to this page, cannot be read: ${why}.`,
      "Run `qo ui deploy`, or `qo ui`.",
    );
  }
  return { ...checked(found, location.origin), aheadMs };
}

/** What a cache on the way has kept was sent so many seconds ago, and says so. */
export function ahead(headers: Headers, now: number): number {
  const sent = Date.parse(headers.get("date") ?? "");
  return Number.isNaN(sent) ? 0 : sent + 1000 * (Number(headers.get("age")) || 0) - now;
}

/** Addresses made whole: an empty endpoint is this origin's own /s3, and a dispatcher may be a path of it, too. */
export function checked(found: unknown, origin: string): Config {
  const raw = (found ?? {}) as Partial<Config> & { worker_health_threshold_s?: unknown };
  if (typeof raw.endpoint !== "string" || typeof raw.bucket !== "string" || !raw.bucket)
    throw new Problem("wrong", "config.json has no endpoint or no bucket.", "Run `qo ui deploy` again.");
  const prefix = (raw.prefix ?? "").replace(/^\/+|\/+$/g, "");
  return {
    endpoint: raw.endpoint === "" ? `${origin}/s3` : raw.endpoint,
    bucket: raw.bucket,
    prefix: prefix ? `${prefix}/` : "",
    region: raw.region ?? "us-east-1",
    dispatcher: typeof raw.dispatcher === "string" ? new URL(raw.dispatcher, origin).href.replace(/\/$/, "") : null,
    version: raw.version ?? "",
    queues: Array.isArray(raw.queues) ? raw.queues.filter((each) => QUEUE.test(each)) : null,
    silentMaxS: typeof raw.worker_health_threshold_s === "number" ? raw.worker_health_threshold_s : null,
    aheadMs: 0,
  };
}
