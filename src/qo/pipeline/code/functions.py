"""Checks that the functions that a pipeline names exist, by reading their source. Nothing is imported.

Names that a module creates at run time cannot be seen that way, and a compiled module cannot be read; neither is
reported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, cast

from qo.core.pipeline.dag import Dag
from qo.pipeline.code.fingerprint import bound_names
from qo.pipeline.document import parse
from qo.pipeline.problems import Report, Spot, closest
from qo.pipeline.registry import DEFAULT, FUNCTION, Registry

# A module that uses one of these may have names that no statement in it shows.
_DYNAMIC = frozenset({"globals", "exec", "setattr", "__getattr__"})


def check(dag: Dag, text: str, file: str, *, registry: Registry = DEFAULT) -> None:
    """Look for the module and the function of every job of a file. A job that sets its ``code`` may have its module
    elsewhere, which is then not reported.

    Raises DefinitionError with all that are missing.
    """
    roots = list(dict.fromkeys((str(Path(file).resolve().parent), str(Path.cwd()))))
    report = Report(Spot(file))
    document = parse(text, report)
    assert document is not None  # It was read before.
    places = {name: at for at, name in enumerate(_job_names(document.value))}
    lookup = Report(document.spot)
    for job in dag.jobs:
        if not registry.get(job.runtime).functions or not FUNCTION.match(job.operator):
            continue
        wrong = _find_problem(job.operator, roots, elsewhere=job.code is not None)
        if wrong is not None:
            lookup.add(("jobs", places.get(job.name, 0), "operator"), f"job {job.name!r}: {wrong[0]}", wrong[1])
    if lookup.problems:
        raise lookup.error()


def _job_names(value: Any) -> Iterable[Any]:
    jobs: Any = cast("dict[str, Any]", value).get("jobs") if isinstance(value, dict) else []
    return [cast("dict[str, Any]", each).get("name") for each in cast("list[Any]", jobs)]


def _find_problem(operator: str, roots: Sequence[str], *, elsewhere: bool) -> tuple[str, str] | None:
    """Return what is wrong and what to do; None if no problem can be seen."""
    module, _, function = operator.partition(":")
    spec = _find(module, [*roots, *sys.path])
    if spec is None:
        if elsewhere:
            return None
        where = " or ".join(roots)
        return (
            f"there is no module {module!r} in {where}, nor is it installed",
            "write the module beside the pipeline, or set the 'code' of a job whose module only its workers have",
        )
    path = Path(spec.origin or "")
    if path.suffix != ".py":
        return None
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return f"{path} cannot be read as Python: {error}", "correct it"
    names = bound_names(tree)
    first = function.partition(".")[0]
    if names is None or first in names or _is_dynamic(tree):
        return None
    functions = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return f"{path} defines no {first!r}", closest(first, functions, otherwise="define it, or name one of")


def _find(module: str, paths: Sequence[str]) -> ModuleSpec | None:
    """Find a module as an import would, but without running the packages above it."""
    where: Sequence[str] | None = paths
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:length]), where)
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or ())
    return spec


def _is_dynamic(tree: ast.Module) -> bool:
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and each.id in _DYNAMIC:
            return True
        if isinstance(each, ast.FunctionDef) and each.name == "__getattr__":
            return True
    return False
