"""Bundles of code: a zip with a manifest that names every file in it. These are the rules for both.

A function's bundle (runtimes ``python`` and ``node``) is started by its entrypoint. A pipeline's bundle (``pipeline``)
is the code of a version: its modules, which workers import.

The author of a bundle is not trusted. A bundle that breaks any rule is refused as a whole; nothing is repaired or
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from qo.core.struct_preload import preload
from qo.errors import UsageError

MANIFEST = "bundle_manifest.json"
FILES_MAX = 1000
FILE_BYTES_MAX = 32 * 1024 * 1024
TOTAL_BYTES_MAX = 256 * 1024 * 1024
ZIP_BYTES_MAX = 64 * 1024 * 1024
MANIFEST_BYTES_MAX = 512 * 1024  # Enough for FILES_MAX files.
PATH_CHARS_MAX, SEGMENT_CHARS_MAX = 400, 200
ENV_MAX = 50

SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_ENV = re.compile(r"[A-Z][A-Z0-9_]{0,99}\Z")
# Names that control an interpreter, a loader or a library, or that hold settings of qo.
_ENV_DENIED = re.compile(r"(PATH|HOME|IFS|ENV|SHELL|BASH_.*|LD_.*|DYLD_.*|PYTHON.*|NODE_.*|QO_.*|AWS_.*|S3_.*)\Z")


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    runtime: Literal["python", "node", "pipeline"]
    files: tuple[File, ...]
    entrypoint: str | None = None  # One of the files; None for a pipeline.
    env_allowlist: tuple[str, ...] = ()  # Variables that it asks for, among those that the installation offers.
    name: str | None = None  # For people.
    python: str | None = None  # The Python version that packed it; of a function, without its last part.
    # The following are for pipelines only.
    packages: dict[str, str] = {}  # Installed packages that its modules import, with their versions.
    included: tuple[str, ...] = ()  # The files that the project lists under ``include``.
    own_process: str | None = None  # Why it cannot run beside other versions in one interpreter.

    def file(self, path: str) -> File | None:
        return next((each for each in self.files if each.path == path), None)


preload(Manifest)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a zip as the zip's directory describes it, which the author may have forged."""

    path: str
    bytes: int
    plain: bool  # A regular file: no directory, link or device, not encrypted.


def parse(document: bytes) -> Manifest:
    """Return the manifest. Raises UsageError if it breaks a rule."""
    if len(document) > MANIFEST_BYTES_MAX:
        raise UsageError(f"{MANIFEST} is larger than {MANIFEST_BYTES_MAX} bytes")
    try:
        manifest = msgspec.json.decode(document, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{MANIFEST} is not a manifest: {error}") from None
    check(manifest)
    return manifest


def check(manifest: Manifest) -> None:
    """Raises UsageError for a manifest that breaks a rule."""
    if not 1 <= len(manifest.files) <= FILES_MAX:
        raise UsageError(f"a bundle has 1 to {FILES_MAX} files, this one {len(manifest.files)}")
    for each in manifest.files:
        _check_file(each)
    _check_apart([each.path for each in manifest.files])
    if sum(each.bytes for each in manifest.files) > TOTAL_BYTES_MAX:
        raise UsageError(f"the files of a bundle have {TOTAL_BYTES_MAX} bytes at most")
    if manifest.name is not None and not _NAME.match(manifest.name):
        raise UsageError(
            f"the name of the bundle, {manifest.name[:100]!r}, is not 1 to 100 letters, digits, . _ and -"
        )
    _check_entrypoint(manifest)
    _check_environment(manifest.env_allowlist)


def check_path(path: str) -> None:
    """Raises UsageError unless the path plainly names a file below the bundle's directory."""
    if not path or len(path) > PATH_CHARS_MAX or not path.isprintable():
        raise UsageError(
            f"{path[:100]!r} is no path of a file: it is empty, too long, or holds what cannot be printed"
        )
    if "\\" in path or ":" in path:
        raise UsageError(f"{path!r} is no path of a file: write it with / and without a drive")
    for segment in path.split("/"):
        if segment in ("", ".", "..") or len(segment) > SEGMENT_CHARS_MAX:
            raise UsageError(
                f"{path!r} is no path of a file below the bundle: no leading or trailing /, no . and no .."
            )


def check_entries(manifest: Manifest, entries: Iterable[Entry]) -> None:
    """Raises UsageError unless a zip holds the manifest, the files it names, and nothing else."""
    declared = {each.path: each.bytes for each in manifest.files}
    paths: set[str] = set()
    for entry in entries:
        if not entry.plain:
            raise UsageError(
                f"{entry.path[:100]!r} is no plain file: a bundle has no directories, links or secrets"
            )
        if entry.path in paths:
            raise UsageError(f"{entry.path!r} is in the bundle twice")
        paths.add(entry.path)
        if entry.path == MANIFEST:
            continue
        if entry.path not in declared:
            raise UsageError(f"{entry.path[:100]!r} is in the bundle, but not in its manifest")
        if entry.bytes != declared[entry.path]:
            raise UsageError(f"{entry.path!r} has {entry.bytes} bytes, its manifest says {declared[entry.path]}")
    if missing := declared.keys() - paths:
        raise UsageError(f"{min(missing)!r} is in the manifest, but not in the bundle")


def _check_file(file: File) -> None:
    check_path(file.path)
    if file.path.casefold() == MANIFEST:
        raise UsageError(f"{MANIFEST} does not name itself")
    if not SHA256.match(file.sha256):
        raise UsageError(f"the sha256 of {file.path!r} is not 64 hexadecimal digits in lower case")
    if not 0 <= file.bytes <= FILE_BYTES_MAX:
        raise UsageError(f"{file.path!r} has {file.bytes} bytes: a file has {FILE_BYTES_MAX} at most")


def _check_apart(paths: list[str]) -> None:
    """No two files may be one on a disk that ignores case, and none may be the directory of another."""
    folded = {path.casefold() for path in paths}
    if len(folded) != len(paths):
        raise UsageError("two files of the bundle have the same path, or differ in case only")
    for path in folded:
        parts = path.split("/")
        if any("/".join(parts[:length]) in folded for length in range(1, len(parts))):
            raise UsageError(f"{path!r} lies below another file of the bundle")


def _check_entrypoint(manifest: Manifest) -> None:
    if manifest.runtime == "pipeline":
        if manifest.entrypoint is not None or manifest.env_allowlist:
            raise UsageError("the bundle of a pipeline has neither entrypoint nor env_allowlist")
        return
    if manifest.entrypoint is None or manifest.file(manifest.entrypoint) is None:
        raise UsageError(f"the entrypoint {manifest.entrypoint!r} is not one of the bundle's files")


def _check_environment(names: tuple[str, ...]) -> None:
    if len(names) > ENV_MAX:
        raise UsageError(f"a bundle asks for {ENV_MAX} variables at most")
    for name in names:
        check_variable(name)


def check_variable(name: str) -> None:
    """Raises UsageError for a variable that code of users cannot have."""
    if not _ENV.match(name) or _ENV_DENIED.match(name):
        raise UsageError(f"a bundle cannot have the variable {name[:100]!r}")
