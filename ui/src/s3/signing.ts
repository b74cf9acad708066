/** AWS Signature Version 4 for S3, with the browser's own cryptography. */

export interface Keys {
  accessKeyId: string;
  secretAccessKey: string;
  sessionToken: string | null;
}

export interface Unsigned {
  method: string;
  url: URL; // Its path is encoded already, by `path` below.
  query: [string, string][];
  headers: Record<string, string>;
  body: Uint8Array;
}

const encoder = new TextEncoder();

/** The headers to send, beside those that the browser sets itself. */
export async function signed(
  request: Unsigned,
  keys: Keys,
  region: string,
  at: Date,
): Promise<Record<string, string>> {
  const stamp = at.toISOString().replace(/[-:]|\.\d{3}/g, "");
  const scope = `${stamp.slice(0, 8)}/${region}/s3/aws4_request`;
  const digest = hex(await sha256(request.body));
  const headers: Record<string, string> = {
    ...request.headers,
    "x-amz-content-sha256": digest,
    "x-amz-date": stamp,
    ...(keys.sessionToken === null ? {} : { "x-amz-security-token": keys.sessionToken }),
  };
  const all = Object.entries({ ...headers, host: request.url.host })
    .map(([name, value]) => [name.toLowerCase(), value.trim().replace(/ +/g, " ")] as const)
    .sort(([a], [b]) => (a < b ? -1 : 1));
  const names = all.map(([name]) => name).join(";");
  const canonical = [
    request.method,
    request.url.pathname,
    queryText(request.query),
    ...all.map(([name, value]) => `${name}:${value}`),
    "",
    names,
    digest,
  ].join("\n");
  const toSign = ["AWS4-HMAC-SHA256", stamp, scope, hex(await sha256(encoder.encode(canonical)))].join("\n");
  const signature = hex(await hmac(await signingKey(keys.secretAccessKey, scope), toSign));
  return {
    ...headers,
    authorization: `AWS4-HMAC-SHA256 Credential=${keys.accessKeyId}/${scope}, SignedHeaders=${names}, Signature=${signature}`,
  };
}

/** Sorted and encoded as the signature wants it; the same text goes into the address. */
export function queryText(query: [string, string][]): string {
  return query
    .map(([name, value]) => [encoded(name), encoded(value)] as const)
    .sort(([a, x], [b, y]) => (a < b || (a === b && x < y) ? -1 : 1))
    .map(([name, value]) => `${name}=${value}`)
    .join("&");
}

export function path(key: string): string {
  return key.split("/").map(encoded).join("/");
}

function encoded(text: string): string {
  return encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

// A day's key costs four rounds of HMAC, and a refresh signs a handful of requests.
let remembered: { of: string; key: Promise<Uint8Array> } | null = null;

function signingKey(secret: string, scope: string): Promise<Uint8Array> {
  const of = `${secret}\n${scope}`;
  if (remembered?.of !== of) {
    const derive = async (): Promise<Uint8Array> => {
      let key: Uint8Array = encoder.encode(`AWS4${secret}`);
      for (const part of scope.split("/")) key = await hmac(key, part);
      return key;
    };
    remembered = { of, key: derive() };
  }
  return remembered.key;
}

/** Forget the derived key together with the credentials that it came from. */
export function forgetSigningKey(): void {
  remembered = null;
}

async function hmac(key: Uint8Array, text: string): Promise<Uint8Array> {
  const imported = await crypto.subtle.importKey(
    "raw",
    key as BufferSource,
    { name: "HMAC", hash: "SHA-256" },
    false,
    ["sign"],
  );
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, encoder.encode(text)));
}

async function sha256(body: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", body as BufferSource));
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
