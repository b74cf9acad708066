"""What S3 says, written as its XML."""

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
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


class Listed(NamedTuple):
    """A page of ListObjectsV2, and what was asked."""

    bucket: str
    prefix: str
    delimiter: str
    start_after: str
    token: str
    max_keys: int
    url: bool  # Whether keys are wanted percent-encoded.
    entries: Sequence[Entry]
    common: Sequence[str]
    next_token: str  # Empty on the last page.


class ListedVersions(NamedTuple):
    """A page of ListObjectVersions, and what was asked."""

    bucket: str
    prefix: str
    key_marker: str
    version_marker: str
    max_keys: int
    url: bool
    versions: Sequence[tuple[str, Version]]
    next_key: str  # Empty on the last page.
    next_version: str


def error(code: str, message: str, resource: str) -> bytes:
    inner = _element("Code", code) + _element("Message", message) + _element("Resource", resource)
    return f"{_HEAD}<Error>{inner}</Error>".encode()


def listed(page: Listed) -> bytes:
    named = _namer(page.url)
    parts = [
        _element("Name", page.bucket),
        _element("Prefix", named(page.prefix)),
        _element("Delimiter", named(page.delimiter)) if page.delimiter else "",
        _element("StartAfter", named(page.start_after)) if page.start_after else "",
        _element("ContinuationToken", page.token) if page.token else "",
        _element("KeyCount", len(page.entries) + len(page.common)),
        _element("MaxKeys", page.max_keys),
        _element("EncodingType", "url") if page.url else "",
        _element("IsTruncated", "true" if page.next_token else "false"),
        _element("NextContinuationToken", page.next_token) if page.next_token else "",
    ]
    for key, etag, size, modified in page.entries:
        parts.append(
            f"<Contents><Key>{_escaped(named(key))}</Key><LastModified>{moment(modified)}</LastModified>"
            f"<ETag>{_escaped(etag)}</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    parts += [f"<CommonPrefixes>{_element('Prefix', named(each))}</CommonPrefixes>" for each in page.common]
    return _document("ListBucketResult", parts)


def listed_versions(page: ListedVersions) -> bytes:
    named = _namer(page.url)
    parts = [
        _element("Name", page.bucket),
        _element("Prefix", named(page.prefix)),
        _element("KeyMarker", named(page.key_marker)),
        _element("VersionIdMarker", page.version_marker),
        _element("MaxKeys", page.max_keys),
        _element("EncodingType", "url") if page.url else "",
        _element("IsTruncated", "true" if page.next_key else "false"),
    ]
    if page.next_key:
        parts += [
            _element("NextKeyMarker", named(page.next_key)),
            _element("NextVersionIdMarker", page.next_version),
        ]
    for key, each in page.versions:
        body = (
            _element("Key", named(key))
            + _element("VersionId", each.version)
            + _element("IsLatest", "true" if each.latest else "false")
            + _element("LastModified", moment(each.modified))
        )
        if each.deleted:
            parts.append(f"<DeleteMarker>{body}</DeleteMarker>")
        else:
            more = _element("ETag", each.etag) + _element("Size", each.size)
            parts.append(f"<Version>{body}{more}<StorageClass>STANDARD</StorageClass></Version>")
    return _document("ListVersionsResult", parts)


def versioning(*, enabled: bool) -> bytes:
    return _document("VersioningConfiguration", [_element("Status", "Enabled")] if enabled else [])


def deleted(deletions: Sequence[Deletion], *, quiet: bool) -> bytes:
    """The answer to DeleteObjects. A store of ours deletes all of them, or raises."""
    if quiet:
        return _document("DeleteResult", [])
    return _document("DeleteResult", (f"<Deleted>{_element('Key', each.key)}</Deleted>" for each in deletions))


def read_deletion(body: bytes) -> tuple[list[Deletion], bool]:
    """What DeleteObjects asks for, and whether only failures are to be told. Raises ValueError for anything else."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as problem:
        raise ValueError(str(problem)) from None
    found: list[Deletion] = []
    quiet = False
    for child in root:
        fields = {_name(each): each.text or "" for each in child}
        if _name(child) == "Object":
            if not fields.get("Key"):
                raise ValueError("an Object has no Key")
            found.append(Deletion(fields["Key"], fields.get("VersionId"), fields.get("ETag")))
        elif _name(child) == "Quiet":
            quiet = child.text == "true"
    return found, quiet


def moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _document(root: str, parts: Iterable[str]) -> bytes:
    return f'{_HEAD}<{root} xmlns="{NAMESPACE}">{"".join(parts)}</{root}>'.encode()


def _element(name: str, value: object) -> str:
    return f"<{name}>{_escaped(str(value))}</{name}>"


def _escaped(text: str) -> str:
    # Most texts have nothing to escape, and to see that is ten times as quick as to translate them.
    return _SPECIAL.sub(_reference, text)


def _reference(found: re.Match[str]) -> str:
    return _NAMED.get(found[0]) or f"&#{ord(found[0])};"


def _namer(url: bool) -> Callable[[str], str]:
    return _quoted if url else str


def _quoted(text: str) -> str:
    return quote(text, safe="/")
