"""Decides from its source whether the code of a version can share an interpreter with other versions.

In a shared interpreter, each version's modules have names of their own, and import each other by those. That separates
everything that belongs to the modules: functions, classes, global variables. It cannot separate what belongs to the
whole process (its environment, its working directory, modules of others), nor follow names that are only known at run
time. Code that touches any of these runs in a process of its own for each version.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from qo.pipeline.code.modules import Module

COMPILED = (".so", ".pyd", ".dylib", ".dll")
# These find modules by names that are computed at run time, or write the names of classes into data.
_BY_NAME = frozenset({"importlib", "pkgutil", "runpy", "imp", "pickle", "cloudpickle", "dill", "joblib", "shelve"})
_CALLS = {
    "__import__": "imports by name",
    "import_module": "imports by name",
    "exec": "runs code that is only known then",
    "chdir": "changes the working directory",
    "umask": "changes the umask",
    "putenv": "changes the environment",
    "setlocale": "changes the locale",
    "set_option": "changes an option of a package",
    "setrecursionlimit": "changes the interpreter",
}
_OF_PROCESS = {
    ("os", "environ"): "the environment",
    ("sys", "path"): "the import path",
    ("sys", "modules"): "the loaded modules",
    ("sys", "meta_path"): "the import system",
}
_CHANGING = frozenset(
    {"append", "insert", "extend", "remove", "pop", "update", "setdefault", "clear", "popitem", "sort"}
)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why code needs a process of its own, and where in the code that is."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place} {self.what}"


def find_reason(modules: Sequence[Module], files: Iterable[str] = ()) -> Reason | None:
    """Return the first reason for a process of its own; None if there is none. ``files``: names of all other files."""
    for name in sorted(files):
        if name.endswith(COMPILED):
            return Reason(name, "is a compiled extension, of which an interpreter loads one")
    for module in modules:
        for node, what in _reasons(module, {each.name.partition(".")[0] for each in modules}):
            return Reason(f"{module.path.name}:{getattr(node, 'lineno', 1)}", what)
    return None


def _reasons(module: Module, own: set[str]) -> Iterator[tuple[ast.AST, str]]:
    packages = _imported_packages(module, own)
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from _by_name(node, alias.name)
            case ast.ImportFrom(module=str(name), level=0):
                yield from _by_name(node, name)
            case ast.Call(func=func):
                yield from _call(node, func)
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                yield from _changes(node, targets, packages)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield from _changes(node, [target], packages)
            case _:
                pass


def _by_name(node: ast.AST, name: str) -> Iterator[tuple[ast.AST, str]]:
    top = name.partition(".")[0]
    if top in _BY_NAME:
        yield node, f"uses {top}, which finds modules by name"


def _call(node: ast.AST, func: ast.expr) -> Iterator[tuple[ast.AST, str]]:
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if name in _CALLS:
        yield node, f"{_CALLS[name]} ({name})"
    if isinstance(func, ast.Attribute) and name in _CHANGING and (what := _of_process(func.value)) is not None:
        yield node, f"changes {what}"


def _changes(node: ast.AST, targets: Iterable[ast.expr], packages: set[str]) -> Iterator[tuple[ast.AST, str]]:
    """Yield assignments that change the process, or a package that other versions use too."""
    for target in targets:
        inner = target.value if isinstance(target, ast.Subscript) else target
        if (what := _of_process(inner)) is not None:
            yield node, f"changes {what}"
        elif isinstance(target, ast.Attribute) and (name := _base(target)) in packages:
            yield node, f"changes the package {name}"


def _of_process(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return _OF_PROCESS.get((node.value.id, node.attr))
    return _OF_PROCESS[("os", "environ")] if isinstance(node, ast.Name) and node.id == "environ" else None


def _base(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported_packages(module: Module, own: set[str]) -> set[str]:
    """Return the names by which the module knows modules that are not its own."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            foreign = (alias for alias in node.names if alias.name.partition(".")[0] not in own)
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in foreign}
    return names
