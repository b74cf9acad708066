/**
 * What S3 answers in XML: elements, text and nothing else. It is read with a few expressions, because a document of a
 * thousand entries takes the browser's own parser ten times as long, and the first look waits for three of them.
 */

export interface Entry {
  key: string;
  etag: string;
  modified: number; // Seconds since 1970.
  size: number;
}

export interface Page {
  entries: Entry[];
  truncated: boolean;
}

export interface Version {
  versionId: string;
  etag: string;
  modified: number;
  latest: boolean;
  size: number;
}

export interface VersionsPage {
  versions: Version[];
  next: { key: string; version: string } | null;
}

export class NoXml extends Error {}

/** A page of ListObjectsV2; `prefix` is taken off each key. */
export function listPage(text: string, prefix: string): Page {
  const root = inside(text, "ListBucketResult");
  const decoded = decoder(root);
  return {
    entries: elements(root, "Contents").map((each) => ({
      key: decoded(said(each, "Key")).slice(prefix.length),
      etag: said(each, "ETag"),
      modified: Date.parse(said(each, "LastModified")) / 1000,
      size: Number(said(each, "Size") || 0),
    })),
    truncated: said(root, "IsTruncated") === "true",
  };
}

/** The folders of a listing with a delimiter, without the prefix. */
export function folders(text: string, prefix: string): string[] {
  const root = inside(text, "ListBucketResult");
  const decoded = decoder(root);
  return elements(root, "CommonPrefixes").map((each) => decoded(said(each, "Prefix")).slice(prefix.length));
}

/** The versions of exactly this key, newest first, without delete markers: nothing can be read from those. */
export function versionsPage(text: string, key: string): VersionsPage {
  const root = inside(text, "ListVersionsResult");
  const decoded = decoder(root);
  const versions = elements(root, "Version").filter((each) => decoded(said(each, "Key")) === key);
  const nextKey = decoded(said(root, "NextKeyMarker"));
  const more = said(root, "IsTruncated") === "true" && nextKey === key;
  return {
    versions: versions.map((each) => ({
      versionId: said(each, "VersionId"),
      etag: said(each, "ETag"),
      modified: Date.parse(said(each, "LastModified")) / 1000,
      latest: said(each, "IsLatest") === "true",
      size: Number(said(each, "Size") || 0),
    })),
    next: more ? { key: nextKey, version: said(root, "NextVersionIdMarker") } : null,
  };
}

/** Code and message of an error, or null if the text is none of S3's. */
export function errorOf(text: string): { code: string; message: string } | null {
  try {
    const root = inside(text, "Error");
    return { code: said(root, "Code"), message: said(root, "Message") };
  } catch {
    return null;
  }
}

/** What is in the element that a document consists of. */
function inside(text: string, wanted: string): string {
  const found = /^\s*(?:<\?xml[^>]*\?>)?\s*<(\w+)(?:\s[^>]*)?>(.*)<\/\1>\s*$/s.exec(text);
  if (found?.[1] !== wanted) throw new NoXml(`expected ${wanted}, got ${found?.[1] ?? "no XML"}`);
  // A comment, a section or a definition: S3 sends none, and who does could make the rest mean something else.
  if (text.includes("<!")) throw new NoXml(`${wanted} has more in it than elements and text`);
  return found[2]!;
}

/** What is in each element of that name. */
function elements(text: string, name: string): string[] {
  const each = new RegExp(`<${name}(?:\\s[^>]*)?>(.*?)</${name}>`, "gs");
  return Array.from(text.matchAll(each), (found) => found[1]!);
}

/** The text of the first element of that name, which no other element of these documents has in another meaning. */
function said(text: string, name: string): string {
  let sought = expressions.get(name);
  if (!sought) {
    sought = new RegExp(`<${name}(?:\\s[^>]*)?>([^<]*)</${name}>`);
    expressions.set(name, sought);
  }
  return unescaped(sought.exec(text)?.[1] ?? "");
}

const expressions = new Map<string, RegExp>(); // By name. A listing asks for four names a thousand times.

const NAMED: Record<string, string> = { lt: "<", gt: ">", amp: "&", quot: '"', apos: "'" };

function unescaped(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#x([0-9a-f]{1,6})|#([0-9]{1,7})|([a-z]+));/gi, (whole, hex, decimal, name) => {
    if (name) return NAMED[name] ?? whole;
    const point = hex ? Number.parseInt(hex, 16) : Number(decimal);
    return point <= 0x10ffff ? String.fromCodePoint(point) : whole;
  });
}

/** How keys are to be read. Asked once for a page. */
function decoder(root: string): (key: string) => string {
  const encoded = said(root, "EncodingType") === "url";
  return (key) => (encoded ? decodeURIComponent(key.replaceAll("+", " ")) : key);
}
