"""Bundle archives: written byte for byte the same, and read from untrusted senders.

They are read with limits, and unpacked only if every file matches the manifest.

A zip is validated before it is unpacked, and each file again by its own bytes, because the directory of a zip can
claim anything.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qo.core.pipeline.bundle import (
    FILES_MAX,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    PATH_CHARS_MAX,
    ZIP_BYTES_MAX,
    Entry,
    File,
    Manifest,
    check_entries,
    check_path,
    parse,
)
from qo.errors import UsageError

_END = struct.Struct("<4s4H2LH")  # The record at the very end of a zip.
_DIRECTORY_BYTES_MAX = (FILES_MAX + 1) * (46 + 4 * PATH_CHARS_MAX + 128)
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED = 0x1
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_zip(files: Mapping[str, bytes], mode: int = 0o600) -> bytes:
    """Zip files, given by path, without their times and permissions: only their contents count."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, body in sorted(files.items()):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = mode << 16
            archive.writestr(entry, body, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def inspect(body: bytes, sha256: str) -> Manifest:
    """Return the manifest of a zip. Raises UsageError if it has another hash or breaks a rule."""
    check_hash(body, sha256)
    with _open_zip(body) as archive:
        return _validate(archive)


def unpack(body: bytes, sha256: str, directory: Path) -> Manifest:
    """Write the files of a bundle below an empty directory. After a UsageError, delete the directory."""
    check_hash(body, sha256)
    with _open_zip(body) as archive:
        manifest = _validate(archive)
        for file in manifest.files:
            _write(directory / file.path, _content(archive, file))
        return manifest


def check_hash(body: bytes, sha256: str) -> None:
    """Raises UsageError for a zip that is too large or has another hash."""
    if len(body) > ZIP_BYTES_MAX:
        raise UsageError(f"a bundle has {ZIP_BYTES_MAX} bytes at most, this one {len(body)}")
    if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), sha256):
        raise UsageError("the bundle does not have the sha256 that it was registered with")


@contextmanager
def _open_zip(body: bytes) -> Generator[zipfile.ZipFile]:
    _check_end(body)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            yield archive
    except UsageError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        ValueError,
        RuntimeError,  # Includes what zipfile does not implement.
    ) as error:
        raise UsageError(f"the bundle is not a sound zip: {error}") from None


def _check_end(body: bytes) -> None:
    """Check the size of the directory before zipfile reads it: zipfile trusts any size, and keeps each entry."""
    if len(body) < _END.size or not body[-_END.size :].startswith(b"PK\x05\x06"):
        raise UsageError("the bundle is not a plain zip: it does not end as one (write it without a comment)")
    _, _, _, _, entries, directory_bytes, _, _ = _END.unpack(body[-_END.size :])
    if b"PK\x06\x07" in body[-_END.size - 20 : -_END.size]:
        raise UsageError("the bundle is a zip64, which its size does not need")
    if entries > FILES_MAX + 1 or directory_bytes > _DIRECTORY_BYTES_MAX:
        raise UsageError(f"a bundle has {FILES_MAX} files at most")


def _validate(archive: zipfile.ZipFile) -> Manifest:
    members = archive.infolist()
    if len(members) > FILES_MAX + 1:
        raise UsageError(f"a bundle has {FILES_MAX} files at most")
    manifests = [each for each in members if each.orig_filename == MANIFEST]
    if len(manifests) != 1 or not _is_plain(manifests[0]) or manifests[0].file_size > MANIFEST_BYTES_MAX:
        raise UsageError(f"a bundle has one {MANIFEST}, of {MANIFEST_BYTES_MAX} bytes at most")
    with archive.open(manifests[0]) as stream:
        manifest = parse(stream.read(MANIFEST_BYTES_MAX + 1))
    entries = [Entry(each.orig_filename, each.file_size, _is_plain(each)) for each in members]
    for entry in entries:
        check_path(entry.path)
    check_entries(manifest, entries)
    return manifest


def _is_plain(info: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(info.external_attr >> 16)
    return (
        not info.is_dir()
        and kind in (0, stat.S_IFREG)
        and not info.flag_bits & _ENCRYPTED
        and info.compress_type in _METHODS
        and info.filename == info.orig_filename  # zipfile cuts names at a NUL.
    )


def _content(archive: zipfile.ZipFile, file: File) -> bytes:
    with archive.open(file.path) as stream:
        content = stream.read(file.bytes + 1)
    if len(content) != file.bytes or hashlib.sha256(content).hexdigest() != file.sha256:
        raise UsageError(f"{file.path!r} is not the file that the manifest describes")
    return content


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        target.write(content)
