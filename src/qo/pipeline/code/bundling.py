"""Packs the code that a pipeline's functions need: their modules, and the files under ``include``.

The same files give the same bundle, byte for byte, wherever and whenever they are packed.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from qo.config import origins
from qo.config.settings import Isolation, Settings
from qo.core.pipeline.bundle import FILE_BYTES_MAX, FILES_MAX, MANIFEST, ZIP_BYTES_MAX, File, Manifest, check
from qo.errors import UsageError
from qo.function.archive import write_zip
from qo.pipeline.code.isolation import find_reason
from qo.pipeline.code.modules import Module, Sources, parents
from qo.pipeline.code.packages import record_packages

_SKIPPED = frozenset({"__pycache__", "node_modules", ".git", ".qo", ".venv"})


@dataclass(frozen=True, slots=True)
class Bundle:
    """A zip of a pipeline's code, identified by its hash."""

    sha256: str
    body: bytes
    manifest: Manifest
    jobs: tuple[str, ...]  # The jobs that run from it.


@dataclass(frozen=True, slots=True)
class Project:
    """The files that are packed beside a pipeline's modules, and how its code is to be isolated."""

    files: Mapping[str, bytes]  # By path in the bundle.
    isolation: Isolation = Isolation.AUTO


def read_project(home: Path) -> Project:
    """Read the project by the settings beside the pipeline or, without any, those of the working directory.

    Raises UsageError for a pattern that matches no file, or a file that cannot be packed.
    """
    settings = _load_settings(home)
    files: dict[str, bytes] = {}
    for pattern in settings.include:
        paths = [each for each in _find_files(home, pattern) if each.is_file()]
        if not paths:
            raise UsageError(f"include: {pattern!r} matches no file in {home}")
        for path in paths:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise UsageError(
                    f"include: {path} is larger than {FILE_BYTES_MAX:,} bytes: keep it beside the data"
                )
            files[path.relative_to(home).as_posix()] = path.read_bytes()
    if len(files) > FILES_MAX:
        raise UsageError(f"include names {len(files):,} files: at most {FILES_MAX:,} can be packed with a version")
    return Project(files, settings.isolation)


def pack(operators: Mapping[str, str], roots: Sequence[Path], project: Project) -> Bundle:
    """Pack the operators, which are given by name of job. Raises Unresolvable, UsageError."""
    modules = Sources(roots).closure(
        {name for each in operators.values() for name in _with_parents(each.partition(":")[0])}
    )
    bodies = {_path_in_bundle(each): each.path.read_bytes() for each in modules}
    bodies = {**project.files, **bodies}
    manifest = _describe(modules, bodies, project)
    body = write_zip({**bodies, MANIFEST: msgspec.json.encode(manifest, order="deterministic")})
    if len(body) > ZIP_BYTES_MAX:
        raise UsageError(
            f"the code of this pipeline has {len(body):,} bytes: at most {ZIP_BYTES_MAX:,} can be packed with a version"
        )
    return Bundle(hashlib.sha256(body).hexdigest(), body, manifest, tuple(sorted(operators)))


def _describe(modules: Sequence[Module], bodies: Mapping[str, bytes], project: Project) -> Manifest:
    others = bodies.keys() - {_path_in_bundle(each) for each in modules}
    reason = "the project says so" if project.isolation is Isolation.PROCESS else find_reason(modules, others)
    manifest = Manifest(
        schema_version=1,
        runtime="pipeline",
        files=tuple(
            File(path=path, sha256=hashlib.sha256(body).hexdigest(), bytes=len(body))
            for path, body in sorted(bodies.items())
        ),
        packages=record_packages(modules, (each.name for each in modules)),
        python=platform.python_version(),
        included=tuple(sorted(project.files)),
        own_process=None if reason is None else str(reason),
    )
    check(manifest)
    return manifest


def _path_in_bundle(module: Module) -> str:
    """Return the path of a module in the bundle: below one root, whichever root it came from."""
    path = module.name.replace(".", "/")
    return f"{path}/__init__.py" if module.path.name == "__init__.py" else f"{path}.py"


def _with_parents(name: str) -> set[str]:
    return {name, *parents(name)}


def _load_settings(home: Path) -> Settings:
    beside = any((home / name).is_file() for name in (origins.FILE_NAME, "pyproject.toml"))
    return origins.load(cwd=home) if beside else origins.load()


def _find_files(home: Path, pattern: str) -> Iterable[Path]:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise UsageError(f"include: {pattern!r} leaves the pipeline's directory: name files below {home}")
    paths = sorted(home.glob(pattern))
    nested = [each for path in paths if path.is_dir() for each in sorted(path.rglob("*"))]
    return [each for each in dict.fromkeys([*paths, *nested]) if not _SKIPPED & set(each.relative_to(home).parts)]
