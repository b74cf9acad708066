"""The XML documents of S3: replies written, and the body of DeleteObjects read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from qo.store.port import Deletion, Entry, Version

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SPECIAL = re.compile('[&<>"\x00-\x08\x0b-\x1f]')
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


class ListingPage(NamedTuple):
    """A page of ListObjectsV2, with the arguments of the request."""

    bucket: str
    prefix: str
    delimiter: str
    start_after: str
    token: str
    max_keys: int
    url: bool  # Whether to percent-encode keys.
    entries: Sequence[Entry]
    common: Sequence[str]
    next_token: str  # Empty on the last page.


class VersionsPage(NamedTuple):
    """A page of ListObjectVersions, with the arguments of the request."""

    bucket: str
    prefix: str
    key_marker: str
    version_marker: str
    max_keys: int
    url: bool
    versions: Sequence[tuple[str, Version]]
    next_key: str  # Empty on the last page.
    next_version: str


def error_xml(code: str, message: str, resource: str) -> bytes:
    inner = _element("Code", code) + _element("Message", message) + _element("Resource", resource)
    return f"{_HEAD}<Error>{inner}</Error>".encode()


def listing_xml(page: ListingPage) -> bytes:
    encode = _key_encoder(page.url)
    parts = [
        _element("Name", page.bucket),
        _element("Prefix", encode(page.prefix)),
        _element("Delimiter", encode(page.delimiter)) if page.delimiter else "",
        _element("StartAfter", encode(page.start_after)) if page.start_after else "",
        _element("ContinuationToken", page.token) if page.token else "",
        _element("KeyCount", len(page.entries) + len(page.common)),
        _element("MaxKeys", page.max_keys),
        _element("EncodingType", "url") if page.url else "",
        _element("IsTruncated", "true" if page.next_token else "false"),
        _element("NextContinuationToken", page.next_token) if page.next_token else "",
    ]
    for key, etag, size, modified in page.entries:
        parts.append(
            f"<Contents><Key>{_escape(encode(key))}</Key><LastModified>{format_time(modified)}</LastModified>"
            f"<ETag>{_escape(etag)}</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    parts += [f"<CommonPrefixes>{_element('Prefix', encode(each))}</CommonPrefixes>" for each in page.common]
    return _document("ListBucketResult", parts)


def versions_xml(page: VersionsPage) -> bytes:
    encode = _key_encoder(page.url)
    parts = [
        _element("Name", page.bucket),
        _element("Prefix", encode(page.prefix)),
        _element("KeyMarker", encode(page.key_marker)),
        _element("VersionIdMarker", page.version_marker),
        _element("MaxKeys", page.max_keys),
        _element("EncodingType", "url") if page.url else "",
        _element("IsTruncated", "true" if page.next_key else "false"),
    ]
    if page.next_key:
        parts += [
            _element("NextKeyMarker", encode(page.next_key)),
            _element("NextVersionIdMarker", page.next_version),
        ]
    for key, each in page.versions:
        body = (
            _element("Key", encode(key))
            + _element("VersionId", each.version)
            + _element("IsLatest", "true" if each.latest else "false")
            + _element("LastModified", format_time(each.modified))
        )
        if each.deleted:
            parts.append(f"<DeleteMarker>{body}</DeleteMarker>")
        else:
            more = _element("ETag", each.etag) + _element("Size", each.size)
            parts.append(f"<Version>{body}{more}<StorageClass>STANDARD</StorageClass></Version>")
    return _document("ListVersionsResult", parts)


def versioning_xml(*, enabled: bool) -> bytes:
    return _document("VersioningConfiguration", [_element("Status", "Enabled")] if enabled else [])


def deletion_xml(deletions: Sequence[Deletion], *, quiet: bool) -> bytes:
    """Write the reply to DeleteObjects. A store deletes all objects or raises, so it lists no failures."""
    if quiet:
        return _document("DeleteResult", [])
    return _document("DeleteResult", (f"<Deleted>{_element('Key', each.key)}</Deleted>" for each in deletions))


def read_deletion(body: bytes) -> tuple[list[Deletion], bool]:
    """Read the deletions of DeleteObjects, and whether to report only failures. Raises ValueError if malformed."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as problem:
        raise ValueError(str(problem)) from None
    deletions: list[Deletion] = []
    quiet = False
    for child in root:
        fields = {_name(each): each.text or "" for each in child}
        if _name(child) == "Object":
            if not fields.get("Key"):
                raise ValueError("an Object has no Key")
            deletions.append(Deletion(fields["Key"], fields.get("VersionId"), fields.get("ETag")))
        elif _name(child) == "Quiet":
            quiet = child.text == "true"
    return deletions, quiet


def format_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _document(root: str, parts: Iterable[str]) -> bytes:
    return f'{_HEAD}<{root} xmlns="{NAMESPACE}">{"".join(parts)}</{root}>'.encode()


def _element(name: str, value: object) -> str:
    return f"<{name}>{_escape(str(value))}</{name}>"


def _escape(text: str) -> str:
    # Most texts need no escaping, and one search is ten times as fast as str.translate.
    return _SPECIAL.sub(_reference, text)


def _reference(match: re.Match[str]) -> str:
    return _ENTITIES.get(match[0]) or f"&#{ord(match[0])};"


def _key_encoder(url: bool) -> Callable[[str], str]:
    return _quote_key if url else str


def _quote_key(text: str) -> str:
    return quote(text, safe="/")
