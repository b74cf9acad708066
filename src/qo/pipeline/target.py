"""Targets of commands: what names a pipeline, and the directory that its code is imported from.

pipeline.yaml       a definition; its code lies beside it
climate:pipeline    a qo.Pipeline by its module, looked for in the current directory first
jobs/climate.py     the only qo.Pipeline of a file; jobs/climate.py:NAME is one of several
jobs                a directory: its pipeline.yaml or, without one, its pipeline.py
reports             a directory with queries (*.sql) and no file that could be a definition: see ``query_folder``
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from qo.errors import QoError, UsageError
from qo.pipeline.declare import Pipeline
from qo.pipeline.query_folder import QUERY, QueryFolder, list_queries
from qo.pipeline.registry import FUNCTION

SUFFIXES = (".yaml", ".yml", ".json")
PYTHON = ".py"
DEFINITIONS = tuple(f"pipeline{suffix}" for suffix in SUFFIXES)  # Looked for in a directory.
DECLARATION = f"pipeline{PYTHON}"

_NEVER_UNLOADED = ("__main__", "qo")  # Never imported again.

_imported: set[str] = set()  # Top-level modules that were imported for a target, and may be unloaded for another.


@dataclass(frozen=True, slots=True)
class Target:
    """A pipeline in a definition file, declared in Python, or of nothing but queries."""

    directory: Path  # Its operators are imported from here.
    file: Path | None = None  # The definition.
    pipeline: Pipeline | QueryFolder | None = None  # What makes the document, where there is no definition.


def resolve(target: str) -> Target:
    """Find the pipeline of a target. Python is imported; a definition is not read.

    Raises UsageError for a target that is no pipeline or cannot be imported.
    """
    path = _find_in_directory(Path(target)) if Path(target).is_dir() else Path(target)
    if path.is_dir():
        return Target(path.resolve(), pipeline=QueryFolder(path))
    file, _, attribute = str(path).partition(f"{PYTHON}:")
    if attribute:
        return _resolve_file(Path(file + PYTHON), attribute)
    if path.suffix == PYTHON:
        return _resolve_file(path, None)
    if path.suffix in SUFFIXES or path.is_file():
        return Target(path.resolve().parent, file=path)
    if FUNCTION.match(target):
        return _resolve_module(target)
    raise UsageError(
        f"there is no pipeline {target}: give a file ({', '.join((*SUFFIXES, PYTHON))}), its directory, "
        "or module:pipeline"
    )


def _find_in_directory(directory: Path) -> Path:
    """Return the definition in a directory, or the directory itself if it is a pipeline of queries alone."""
    for name in (*DEFINITIONS, DECLARATION):
        if (directory / name).is_file():
            return directory / name
    missing = f"there is no {DEFINITIONS[0]} or {DECLARATION} in {directory}"
    if not list_queries(directory):
        raise UsageError(f"{missing}: name the file")
    # The queries may be parts of a pipeline whose definition has a name of its own.
    others = sorted(each.name for each in directory.iterdir() if each.suffix in (*SUFFIXES, PYTHON))
    if others:
        raise UsageError(f"{missing}, and it has {others[0]} beside its {QUERY} files: name the file")
    return directory


def _resolve_file(path: Path, attribute: str | None) -> Target:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give the path of a pipeline")
    root, name = _module_name(path)
    module = _import(name, root)
    if attribute is not None:
        return Target(root, pipeline=_find_attribute(module, attribute, f"{path}:{attribute}"))
    pipelines = _pipelines_of(module)
    if len(pipelines) == 1:
        return Target(root, pipeline=next(iter(pipelines.values())))
    if not pipelines:
        raise UsageError(f"{path} has no qo.Pipeline: declare one at the top of the file")
    # Only a module in the current directory can be named as module:attribute.
    prefix = name if root == Path.cwd() else path
    listed = ", ".join(f"{prefix}:{each}" for each in pipelines)
    raise UsageError(f"{path} has {len(pipelines)} pipelines: give one of {listed}")


def _resolve_module(target: str) -> Target:
    name, _, attribute = target.partition(":")
    module = _import(name, Path.cwd())
    path = Path(module.__file__ or "").resolve()
    levels = name.count(".") + (path.name == "__init__.py")
    return Target(path.parents[levels], pipeline=_find_attribute(module, attribute, target))


def _module_name(path: Path) -> tuple[Path, str]:
    """Return the directory that a file is imported from, and its module name there, with that of its packages."""
    full = path.resolve()
    parts = [] if full.name == "__init__.py" else [full.stem]
    root = full.parent
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    for part in parts:
        if not part.isidentifier():
            raise UsageError(f"{path} cannot be imported: rename it, {part!r} is no name of a Python module")
    if parts[0] in sys.stdlib_module_names:
        raise UsageError(f"{path} has the name of one of Python's own modules: rename it")
    return root, ".".join(parts)


def _import(name: str, root: Path) -> ModuleType:
    """Import a module from a directory, or from wherever it is installed."""
    sys.path[:] = [str(root), *(each for each in sys.path if each != str(root))]
    importlib.invalidate_caches()
    _unload_namesake(name.partition(".")[0])
    loaded = set(sys.modules)
    try:
        module = importlib.import_module(name)
    except QoError:
        raise  # Its message says what to do.
    except Exception as error:
        message = f"importing {name!r} failed: {type(error).__name__}: {error}"
        raise UsageError(
            f"{message}; start in the directory that it is in, and see that it can be imported"
        ) from error
    _imported.update({each.partition(".")[0] for each in set(sys.modules) - loaded} & {name.partition(".")[0]})
    return module


def _unload_namesake(top: str) -> None:
    """Unload a module of the same name that another target has imported from another directory."""
    loaded = sys.modules.get(top)
    if loaded is None:
        return
    spec = PathFinder.find_spec(top)
    if spec is None or spec.origin == loaded.__file__:
        return
    if top not in _imported:
        raise UsageError(f"{spec.origin} has the name of {loaded.__file__}, which qo itself needs: rename it")
    for each in [each for each in sys.modules if each == top or each.startswith(f"{top}.")]:
        del sys.modules[each]


def unload(directories: Collection[Path]) -> None:
    """Forget the modules of some directories, so that they are imported again as they are now."""
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/")
        is_installed = {"site-packages", "dist-packages"} & set(path.parts) or name.partition(".")[
            0
        ] in _NEVER_UNLOADED
        if not is_installed and any(path.is_relative_to(each) for each in directories):
            del sys.modules[name]
    importlib.invalidate_caches()


def _pipelines_of(module: ModuleType) -> dict[str, Pipeline]:
    """Return the pipelines at the top of a module, each once even if it has two names."""
    pipelines: dict[str, Pipeline] = {}
    for name, each in vars(module).items():
        if isinstance(each, Pipeline) and not any(each is other for other in pipelines.values()):
            pipelines[name] = each
    return pipelines


def _find_attribute(module: ModuleType, attribute: str, target: str) -> Pipeline:
    value: object = module
    for name in attribute.split("."):
        value = getattr(value, name, None)
    if isinstance(value, Pipeline):
        return value
    candidates = ", ".join(f"{target.removesuffix(attribute)}{name}" for name in _pipelines_of(module))
    hint = f"did you mean {candidates}?" if candidates else "name a qo.Pipeline as module:attribute"
    raise UsageError(f"{target!r} is no pipeline: {hint}")
