/** What S3 answers in XML. The browser's parser reads it, which fetches and runs nothing that a document names. */

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
  const root = parsed(text, "ListBucketResult");
  const decoded = decoder(root);
  return {
    entries: children(root, "Contents").map((each) => ({
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
  const root = parsed(text, "ListBucketResult");
  const decoded = decoder(root);
  return children(root, "CommonPrefixes").map((each) => decoded(said(each, "Prefix")).slice(prefix.length));
}

/** The versions of exactly this key, newest first, without delete markers: nothing can be read from those. */
export function versionsPage(text: string, key: string): VersionsPage {
  const root = parsed(text, "ListVersionsResult");
  const decoded = decoder(root);
  const versions = children(root, "Version").filter((each) => decoded(said(each, "Key")) === key);
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
    const root = parsed(text, "Error");
    return { code: said(root, "Code"), message: said(root, "Message") };
  } catch {
    return null;
  }
}

function parsed(text: string, wanted: string): Element {
  const root = new DOMParser().parseFromString(text, "application/xml").documentElement;
  if (!root || root.localName !== wanted) throw new NoXml(`expected ${wanted}, got ${root?.localName ?? "no XML"}`);
  return root;
}

function children(element: Element, name: string): Element[] {
  return Array.from(element.children).filter((each) => each.localName === name);
}

function said(element: Element, name: string): string {
  return children(element, name)[0]?.textContent ?? "";
}

/** How keys are to be read. Asked once for a page: looking among a thousand entries for each of them takes a second. */
function decoder(root: Element): (key: string) => string {
  const encoded = said(root, "EncodingType") === "url";
  return (key) => (encoded ? decodeURIComponent(key.replaceAll("+", " ")) : key);
}
