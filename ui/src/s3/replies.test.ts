import { expect, test } from "vitest";
import { errorOf, folders, listPage, NoXml, versionsPage } from "./replies";

const NS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"';

test("a page of a listing loses its prefix and keeps its dates", () => {
  const page = listPage(
    `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult ${NS}><Name>b</Name><IsTruncated>true</IsTruncated>
     <Contents><Key>team/tasks/a/1.json</Key><LastModified>2026-03-01T09:00:00.000Z</LastModified><ETag>&quot;e1&quot;</ETag><Size>12</Size></Contents>
     <Contents><Key>team/tasks/a/&lt;2&gt;.json</Key><LastModified>2026-03-01T09:00:01.500Z</LastModified><ETag>"e2"</ETag></Contents></ListBucketResult>`,
    "team/",
  );
  expect(page).toEqual({
    truncated: true,
    entries: [
      { key: "tasks/a/1.json", etag: '"e1"', modified: 1772355600, size: 12 },
      { key: "tasks/a/<2>.json", etag: '"e2"', modified: 1772355601.5, size: 0 },
    ],
  });
});

test("folders of a listing lose the prefix, too", () => {
  const text = `<ListBucketResult ${NS}><CommonPrefixes><Prefix>team/queues/python/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>team/queues/spark/</Prefix></CommonPrefixes></ListBucketResult>`;
  expect(folders(text, "team/")).toEqual(["queues/python/", "queues/spark/"]);
});

test("versions of other keys with the same beginning, and delete markers, are left out", () => {
  const page = versionsPage(
    `<ListVersionsResult ${NS}><IsTruncated>false</IsTruncated>
     <DeleteMarker><Key>k</Key><VersionId>d</VersionId><IsLatest>true</IsLatest></DeleteMarker>
     <Version><Key>k</Key><VersionId>2</VersionId><IsLatest>false</IsLatest><LastModified>2026-03-01T09:00:00Z</LastModified><ETag>"b"</ETag><Size>1</Size></Version>
     <Version><Key>k2</Key><VersionId>9</VersionId><LastModified>2026-03-01T09:00:00Z</LastModified><ETag>"c"</ETag></Version></ListVersionsResult>`,
    "k",
  );
  expect(page.versions.map((each) => each.versionId)).toEqual(["2"]);
  expect(page.next).toBeNull();
});

test("versions go on only while the key is the same", () => {
  const text = (key: string) =>
    `<ListVersionsResult ${NS}><IsTruncated>true</IsTruncated><NextKeyMarker>${key}</NextKeyMarker><NextVersionIdMarker>7</NextVersionIdMarker></ListVersionsResult>`;
  expect(versionsPage(text("k"), "k").next).toEqual({ key: "k", version: "7" });
  expect(versionsPage(text("z"), "k").next).toBeNull();
});

test("an error says its code; anything else is none", () => {
  expect(errorOf("<Error><Code>AccessDenied</Code><Message>no</Message></Error>")).toEqual({
    code: "AccessDenied",
    message: "no",
  });
  expect(errorOf("<html><body>proxy</body></html>")).toBeNull();
  expect(() => listPage("not xml", "")).toThrow(NoXml);
});

test("what is escaped in a key is read as it was written, and once only", () => {
  const key = "a&lt;b&gt; &amp;amp; &#34;c&#x27; &#xD;&#128512; &nope;";
  const text = `<ListBucketResult ${NS}><Contents><Key>${key}</Key></Contents></ListBucketResult>`;
  expect(listPage(text, "").entries[0]!.key).toBe("a<b> &amp; \"c' \r\u{1f600} &nope;");
});

test.each([
  "",
  "not XML",
  "<html><body>busy</body></html>",
  "<ListBucketResult><Contents><Key>a</Key></Contents>", // Cut off on its way.
  '<!DOCTYPE x [<!ENTITY e "v">]><ListBucketResult></ListBucketResult>',
  "<ListBucketResult><!-- <Contents><Key>a</Key></Contents> --></ListBucketResult>",
])("%s is no listing", (text) => expect(() => listPage(text, "")).toThrow(NoXml));
