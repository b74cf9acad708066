/** An S3 in memory, as far as the page uses it: real conditions, versions and XML, and replies that can be lost. */

import { Bucket } from "../s3/client";

interface Object_ {
  text: string;
  etag: string;
  modified: number;
  version: string;
}

type Fault = (method: string, key: string) => "lose reply" | "unavailable" | null;

export class Store {
  readonly objects = new Map<string, Object_[]>(); // By key, the newest last; an empty list was deleted.
  readonly asked: string[] = []; // Every request: method and key, or LIST and prefix.
  fault: Fault = () => null;
  now = Date.parse("2026-03-01T09:00:00Z");
  private writes = 0;
  private sorted: string[] | null = null;

  bucket(prefix = ""): Bucket {
    const keys = { accessKeyId: "a", secretAccessKey: "s", sessionToken: null };
    const place = { endpoint: "http://store", bucket: "b", prefix, region: "r" };
    return new Bucket(
      place,
      () => keys,
      (url, init) => this.answer(new URL(String(url)), init ?? {}),
    );
  }

  put(key: string, text: string): void {
    this.writes += 1;
    const etag = `"${this.writes}"`;
    const there = this.objects.get(key);
    if (!there?.length) this.sorted = null;
    this.objects.set(key, [...(there ?? []), { text, etag, modified: this.now, version: `v${this.writes}` }]);
  }

  text(key: string): string | null {
    return this.objects.get(key)?.at(-1)?.text ?? null;
  }

  private async answer(url: URL, init: RequestInit): Promise<Response> {
    const key = decodeURIComponent(url.pathname.slice("/b/".length));
    const method = init.method ?? "GET";
    this.asked.push(key ? `${method} ${key}` : `LIST ${url.searchParams.get("prefix")}`);
    const fault = this.fault(method, key);
    if (fault === "unavailable") return this.reply(503, "<Error><Code>SlowDown</Code></Error>");
    const reply = key ? this.object(method, key, url, init) : this.listing(url);
    if (fault === "lose reply") throw new TypeError("connection reset");
    return reply;
  }

  private object(method: string, key: string, url: URL, init: RequestInit): Response {
    const versions = this.objects.get(key) ?? [];
    const there = versions.at(-1);
    if (method === "DELETE") {
      if (this.objects.delete(key)) this.sorted = null;
      return this.reply(204, null);
    }
    if (method === "PUT") {
      const headers = new Headers(init.headers);
      const wanted = headers.get("if-match");
      const refused = (wanted !== null && wanted !== there?.etag) || (headers.get("if-none-match") === "*" && there);
      if (refused) return this.reply(412, "<Error><Code>PreconditionFailed</Code></Error>");
      this.put(key, new TextDecoder().decode(init.body as Uint8Array));
      return this.reply(200, "", { etag: this.objects.get(key)!.at(-1)!.etag });
    }
    const version = url.searchParams.get("versionId");
    const found = version === null ? there : versions.find((each) => each.version === version);
    if (!found) return this.reply(404, "<Error><Code>NoSuchKey</Code></Error>");
    return this.reply(200, found.text, { etag: found.etag });
  }

  private listing(url: URL): Response {
    const prefix = url.searchParams.get("prefix") ?? "";
    if (url.searchParams.has("versions")) {
      const rows = [...(this.objects.get(prefix) ?? [])]
        .reverse()
        .map((each, n) =>
          this.row("Version", prefix, each, `<VersionId>${each.version}</VersionId><IsLatest>${n === 0}</IsLatest>`),
        );
      return this.reply(
        200,
        `<ListVersionsResult><IsTruncated>false</IsTruncated>${rows.join("")}</ListVersionsResult>`,
      );
    }
    const after = url.searchParams.get("start-after") ?? "";
    const most = Number(url.searchParams.get("max-keys") ?? 1000);
    this.sorted ??= [...this.objects.keys()].sort();
    const from = this.sorted.findIndex((key) => key.startsWith(prefix) && key > after);
    const page: string[] = [];
    for (let n = from; n >= 0 && page.length <= most && this.sorted[n]?.startsWith(prefix); n += 1)
      page.push(this.sorted[n]!);
    const rows = page.slice(0, most).map((key) => this.row("Contents", key, this.objects.get(key)!.at(-1)!, ""));
    return this.reply(
      200,
      `<ListBucketResult><IsTruncated>${page.length > most}</IsTruncated>${rows.join("")}</ListBucketResult>`,
    );
  }

  private row(name: string, key: string, object: Object_, more: string): string {
    const date = new Date(object.modified).toISOString();
    return `<${name}><Key>${key}</Key><ETag>${object.etag}</ETag><LastModified>${date}</LastModified><Size>1</Size>${more}</${name}>`;
  }

  private reply(status: number, text: string | null, headers: Record<string, string> = {}): Response {
    return new Response(text, { status, headers: { date: new Date(this.now).toUTCString(), ...headers } });
  }
}

/** A stored task, in the order in which Python writes the members. */
export function taskText(id: string, changes: Record<string, unknown> = {}): string {
  const at = "2026-03-01T08:00:00Z";
  return JSON.stringify({
    id,
    task_type: "t",
    shard: id[0],
    format: 1,
    status: "pending",
    token: "before",
    available_at: at,
    priority: 0,
    input: null,
    attempt: 0,
    retry_count: 0,
    max_retries: 3,
    created_at: at,
    updated_at: at,
    ...changes,
  });
}

/** Ids like those of real tasks: spread evenly, the same every time. */
export function idOf(n: number): string {
  const head = Math.imul(n + 1, 2654435761) >>> 0;
  return `${head.toString(16).padStart(8, "0")}-0000-4000-8000-${n.toString(16).padStart(12, "0")}`;
}
