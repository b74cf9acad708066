"""Bundles for tests: sound ones, and ones that somebody has tampered with."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
from collections.abc import Mapping
from typing import Any

MAIN = "main.py"


def manifest_of(files: Mapping[str, bytes], /, **changed: Any) -> dict[str, Any]:
    """The manifest that the files deserve, with some fields changed."""
    listed = [
        {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for path, content in files.items()
    ]
    sound = {"schema_version": 1, "runtime": "python", "entrypoint": MAIN, "files": listed, "env_allowlist": []}
    return sound | changed


def bundle(files: Mapping[str, bytes | str], /, **changed: Any) -> bytes:
    """A sound bundle of the files, but for what is changed in its manifest."""
    encoded = {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}
    return zipped(encoded, manifest_of(encoded, **changed))


def zipped(
    entries: Mapping[str, bytes], manifest: Any, *, links: Mapping[str, str] | None = None, comment: bytes = b""
) -> bytes:
    """A zip of whatever is wanted. ``links``: symbolic links by path."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        if manifest is not None:
            archive.writestr(
                "bundle_manifest.json", manifest if isinstance(manifest, bytes) else json.dumps(manifest)
            )
        for path, content in entries.items():
            archive.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
        for path, target in (links or {}).items():
            info = zipfile.ZipInfo(path)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
        archive.comment = comment
    return written.getvalue()


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
