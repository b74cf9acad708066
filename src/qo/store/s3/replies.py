"""Parse the XML replies of S3.

A worker lists all day, and a page holds up to a thousand entries. So listings are split by hand, which takes half the
time of an XML parser; this is safe because XML never has a literal ``<`` in text. Rarer replies go through the parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import unescape
from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from qo.errors import StoreError
from qo.store.port import Deletion, Entry, Page, Version

EPOCH = datetime.fromtimestamp(0, UTC)
CARRIAGE_RETURN = {"\r": "&#13;"}  # A bare one would be read as a line feed.
NO_XML = (ElementTree.ParseError, ValueError, LookupError)  # The latter two for unknown encodings.
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class Refusal(NamedTuple):
    """An error document. The code is empty if the reply has none."""

    code: str = ""
    message: str = ""
    key: str = ""


class VersionsPage(NamedTuple):
    versions: Sequence[tuple[str, Version]]  # Each with its key, in the order of the reply.
    truncated: bool
    next_key: str
    next_version: str


def list_page(body: bytes, *, prefix: str) -> Page:
    """Parse a page of ListObjectsV2, requested with ``encoding-type=url``; ``prefix`` is removed from each key."""
    if b"<ListBucketResult" not in body:
        raise StoreError(f"This is no S3 listing, is the endpoint right? It answered: {body[:200]!r}")
    try:
        return _list_page(body.decode(), prefix)
    except ValueError as error:
        raise StoreError(f"This S3 listing cannot be read ({error}): {body[:200]!r}") from error


def _list_page(text: str, prefix: str) -> Page:
    text = text.replace("&quot;", '"').replace("&#34;", '"')  # At once for the quotes of all ETags.
    head, *chunks = text.split("<Contents>")
    tail = chunks[-1] if chunks else ""
    url_encoded = "<EncodingType>url<" in head or "<EncodingType>url<" in tail
    truncated = "<IsTruncated>true<" in head or "<IsTruncated>true<" in tail
    skip = len(prefix)
    entries: list[Entry] = []
    second, modified = "", EPOCH
    for chunk in chunks:
        key = _between(chunk, "<Key>")
        if "&" in key:
            key = unescape(key)
        if url_encoded and ("%" in key or "+" in key):
            key = unquote_plus(key)
        if (moment := _between(chunk, "<LastModified>")) != second:
            second, modified = moment, datetime.fromisoformat(moment)
        entries.append(
            Entry(key[skip:], quote_etag(_between(chunk, "<ETag>")), int(_between(chunk, "<Size>")), modified)
        )
    return Page(entries, truncated)


def versions_page(body: bytes) -> VersionsPage:
    """Parse a page of ListObjectVersions, requested with ``encoding-type=url``."""
    try:
        return _versions_page(_parse(body))
    except (ValueError, KeyError) as error:
        raise StoreError(f"This S3 listing of versions cannot be read ({error!r}): {body[:200]!r}") from error


def _versions_page(root: ElementTree.Element) -> VersionsPage:
    top = _fields(root)
    url_encoded = top.get("EncodingType") == "url"
    versions: list[tuple[str, Version]] = []
    for element in root:
        kind = _name(element)
        if kind not in ("Version", "DeleteMarker"):
            continue
        fields = _fields(element)
        key = unquote_plus(fields["Key"]) if url_encoded else fields["Key"]
        version = Version(
            version=fields["VersionId"],
            etag=quote_etag(fields.get("ETag", "")),
            size=int(fields.get("Size") or 0),
            modified=datetime.fromisoformat(fields["LastModified"]),
            latest=fields.get("IsLatest") == "true",
            deleted=kind == "DeleteMarker",
        )
        versions.append((key, version))
    next_key = top.get("NextKeyMarker", "")
    return VersionsPage(
        versions=versions,
        truncated=top.get("IsTruncated") == "true",
        next_key=unquote_plus(next_key) if url_encoded else next_key,
        next_version=top.get("NextVersionIdMarker", ""),
    )


def versioning_status(body: bytes) -> str:
    """ "Enabled", "Suspended", or empty where versioning was never switched on."""
    return _fields(_parse(body)).get("Status", "")


def delete_request(deletions: Sequence[Deletion], *, prefix: str) -> bytes:
    """Build the body of DeleteObjects, which requests a reply about failures only."""
    parts = [f'<Delete xmlns="{NAMESPACE}"><Quiet>true</Quiet>']
    for key, version, etag in deletions:
        which = f"<VersionId>{escape(version)}</VersionId>" if version is not None else ""
        which += f"<ETag>{escape(etag)}</ETag>" if etag is not None else ""
        parts.append(f"<Object><Key>{escape(prefix + key, CARRIAGE_RETURN)}</Key>{which}</Object>")
    parts.append("</Delete>")
    return "".join(parts).encode()


def failed_deletes(body: bytes) -> Iterator[Refusal]:
    """Yield the failures of DeleteObjects, except for objects that are missing or have changed."""
    for element in _parse(body):
        if _name(element) != "Error":
            continue
        refused = _refusal(element)
        if refused.code not in ("NoSuchKey", "NoSuchVersion", "PreconditionFailed"):
            yield refused


def refusal(body: bytes) -> Refusal:
    try:
        return _refusal(ElementTree.fromstring(body))
    except NO_XML:
        return Refusal(message=body[:200].decode(errors="replace").strip())


def quote_etag(etag: str) -> str:
    """Return an ETag with its quotes, which some servers omit in XML."""
    return etag if not etag or etag.endswith('"') else f'"{etag}"'


def _refusal(element: ElementTree.Element) -> Refusal:
    fields = _fields(element)
    return Refusal(fields.get("Code", ""), fields.get("Message", ""), fields.get("Key", ""))


def _between(chunk: str, opening: str) -> str:
    return chunk.partition(opening)[2].partition("<")[0]


def _parse(body: bytes) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(body)
    except NO_XML as error:
        raise StoreError(f"This is no S3 reply, is the endpoint right? It answered: {body[:200]!r}") from error


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]  # Servers disagree on whether to name the namespace.


def _fields(element: ElementTree.Element) -> dict[str, str]:
    return {_name(child): child.text or "" for child in element}
