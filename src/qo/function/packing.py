"""Packs bundles of functions, and the AWS Lambda function that runs them.

The same files give the same bundle, byte for byte, wherever and whenever they are packed with one version of Python.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from qo.core.pipeline.bundle import FILE_BYTES_MAX, FILES_MAX, MANIFEST, ZIP_BYTES_MAX, File, Manifest, check
from qo.errors import UsageError
from qo.function.archive import write_zip

SETTINGS = "bundle.toml"  # In the directory of a bundle: what its manifest says. Not packed.
ENTRYPOINTS = ("main.py", "index.mjs", "index.js")  # The first that exists, if none is named.
HANDLER = "qo.function.aws.handler"
_SKIPPED = frozenset({"__pycache__", ".git", ".qo", ".venv", SETTINGS, MANIFEST})
_FIELDS = frozenset({"name", "entrypoint", "env"})


@dataclass(frozen=True, slots=True)
class FunctionBundle:
    sha256: str
    body: bytes
    manifest: Manifest


def build(
    directory: Path, *, name: str | None = None, entrypoint: str | None = None, env: Sequence[str] = ()
) -> FunctionBundle:
    """Pack the files of a directory. What is not given is taken from its bundle.toml.

    Raises UsageError for files that no bundle may hold, or for a manifest that breaks a rule.
    """
    settings = _read_settings(directory)
    files = _read_files(directory)
    entrypoint = entrypoint or settings.get("entrypoint") or next((e for e in ENTRYPOINTS if e in files), None)
    if entrypoint is None:
        raise UsageError(f"{directory} has no {' or '.join(ENTRYPOINTS)}: name the file to run with --entrypoint")
    manifest = Manifest(
        schema_version=1,
        runtime="node" if entrypoint.endswith((".js", ".mjs", ".cjs")) else "python",
        files=tuple(
            File(path=path, sha256=hashlib.sha256(body).hexdigest(), bytes=len(body))
            for path, body in sorted(files.items())
        ),
        entrypoint=entrypoint,
        env_allowlist=tuple(env or settings.get("env", ())),
        name=name or settings.get("name") or directory.resolve().name,
        python=".".join(platform.python_version_tuple()[:2]),
    )
    check(manifest)
    body = write_zip({**files, MANIFEST: msgspec.json.encode(manifest, order="deterministic")})
    if len(body) > ZIP_BYTES_MAX:
        raise UsageError(f"the bundle has {len(body):,} bytes: at most {ZIP_BYTES_MAX:,} are accepted")
    return FunctionBundle(hashlib.sha256(body).hexdigest(), body, manifest)


def _read_settings(directory: Path) -> dict[str, Any]:
    path = directory / SETTINGS
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    try:
        unknown = sorted(settings.keys() - _FIELDS)
        if unknown:
            raise UsageError(f"{path} has {unknown[0]!r}; it takes {', '.join(sorted(_FIELDS))}")
        fields = (("name", str), ("entrypoint", str), ("env", list[str]))
        return {name: msgspec.convert(settings[name], kind) for name, kind in fields if name in settings}
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None


def _read_files(directory: Path) -> dict[str, bytes]:
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory: name the one with the function's files")
    files: dict[str, bytes] = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if _SKIPPED & set(relative.parts) or path.is_dir():
            continue
        if path.is_symlink() or not path.is_file():
            raise UsageError(f"{path} is no plain file: a bundle has no links or devices; copy what it leads to")
        if path.stat().st_size > FILE_BYTES_MAX or len(files) == FILES_MAX:
            raise UsageError(f"{path}: a bundle has {FILES_MAX} files of {FILE_BYTES_MAX:,} bytes each at most")
        files[relative.as_posix()] = path.read_bytes()
    return files


@dataclass(frozen=True, slots=True)
class LambdaPackage:
    """The zip of a Lambda function, and what it has to be created with: it holds compiled modules."""

    body: bytes
    runtime: str  # As AWS names it.
    architecture: str
    handler: str = HANDLER


# Prints the files of everything that the handler has imported, but for the standard library.
_LIST_MODULES = """
import importlib, json, sys
before, found = set(sys.modules), {}
importlib.import_module(sys.argv[1])
for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name not in before and name.partition(".")[0] not in sys.stdlib_module_names:
        found[name] = file
print(json.dumps(found))
"""


def build_lambda() -> LambdaPackage:
    """Pack the handler with every module that it imports, from this environment."""
    module = HANDLER.rpartition(".")[0]
    command = [sys.executable, "-c", _LIST_MODULES, module]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded: dict[str, str] = json.loads(listed.stdout)
    qo_root = Path(__file__).parent.parent.parent
    files: dict[str, bytes] = {}
    for name, file in loaded.items():
        if name.partition(".")[0] == "qo":
            files[Path(file).relative_to(qo_root).as_posix()] = Path(file).read_bytes()
    # Of other packages everything is packed: they may import more later.
    others = {name for name, file in loaded.items() if "." not in name and Path(file).stem == "__init__"}
    for name in sorted(others - {"qo"}):
        package = Path(loaded[name]).parent
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyi":
                files[path.relative_to(package.parent).as_posix()] = path.read_bytes()
    version = ".".join(platform.python_version_tuple()[:2])
    machine = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    body = write_zip(files, 0o644)  # Lambda unpacks as one user, and runs as another.
    return LambdaPackage(body, f"python{version}", machine)
