"""The fingerprint of an operator's code, computed from its source without importing it.

A fingerprint covers what the function of ``module:function`` can reach: of its own module the function itself, what it
names there, directly or through others, and every statement that is neither a definition nor a plain assignment; and
the whole of each module that one of these imports and that lies in the pipeline's own directories. Comments,
docstrings and formatting do not count. Neither do declarations of the pipeline, which are in the DAG.

What is read at run time (files, environment, installed packages) is not covered: set ``code`` yourself.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from qo.pipeline.code.modules import Module, Sources, Unresolvable, parents

_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})  # Fields without meaning of their own.
_DYNAMIC = frozenset({"globals", "locals", "vars", "eval", "exec", "__import__", "import_module"})

_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Assigned = ast.Assign | ast.AnnAssign | ast.AugAssign


def fingerprint(operator: str, roots: Sequence[Path], included: Mapping[str, bytes] | None = None) -> str:
    """Return the fingerprint of ``module:function``. ``roots``: the pipeline's own directories, the first one wins.

    ``included``: files that are packed with the code, by name. Any function may read any of them, so all of them count
    for each. Raises Unresolvable.
    """
    module, _, function = operator.partition(":")
    sources = Sources(roots)
    source = sources.find(module)
    if source is None:
        raise Unresolvable(f"there is no module {module!r} in {' or '.join(map(str, roots))}")
    code = _ReachableCode(source, function.partition(".")[0])
    if not code.is_defined:
        raise Unresolvable(f"{source.path} defines no {function!r}")
    parts = [f"{operator}\n{text}" for text in code.texts]
    imported = {name for each in code.nodes for name in source.imports(each)}
    parts += [f"{each.name}\n{_canonical_text(each.tree)}" for each in sources.closure(imported | parents(module))]
    parts += [
        f"file {name}\n{hashlib.sha256(body).hexdigest()}" for name, body in sorted((included or {}).items())
    ]
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


class _ReachableCode:
    """The statements of a module that matter to one of its functions."""

    def __init__(self, module: Module, function: str) -> None:
        self._pipelines = _pipeline_names(module.tree)
        body = [
            each for each in module.tree.body if not (self._declares(each) or _is_main(each) or _is_text(each))
        ]
        binders: dict[str, list[int]] = {}
        for index, each in enumerate(body):
            for name in _names_bound(each):
                binders.setdefault(name, []).append(index)
        self.is_defined = function in binders or any(_imports_star(each) for each in body)
        dynamic = any(_DYNAMIC & _names_in(each) for each in body)
        always = {
            index for index, each in enumerate(body) if dynamic or not isinstance(each, _Defined | _Assigned)
        }
        selected: set[int] = set()
        waiting = [*always, *binders.get(function, ())]
        while waiting:
            index = waiting.pop()
            if index in selected:
                continue
            selected.add(index)
            waiting += [other for name in self._names(body[index]) for other in binders.get(name, ())]
        self.nodes = [body[index] for index in sorted(selected)]
        self.texts = [_canonical_text(each, self._undeclared(each)) for each in self.nodes]

    def _names(self, node: ast.stmt) -> set[str]:
        left_out = set(map(id, self._decorators(node)))
        if not left_out:
            return _names_in(node)
        return {
            name for child in ast.iter_child_nodes(node) if id(child) not in left_out for name in _names_in(child)
        }

    def _declares(self, node: ast.stmt) -> bool:
        """Return whether a statement only declares something, as ``pipeline.publish(...)`` does."""
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            return self._on_pipeline(node.value)
        return False

    def _decorators(self, node: ast.stmt) -> list[ast.expr]:
        """Return the decorators that declare a job."""
        return [each for each in getattr(node, "decorator_list", ()) if self._on_pipeline(each)]

    def _undeclared(self, node: ast.stmt) -> frozenset[int]:
        return frozenset(map(id, self._decorators(node)))

    def _on_pipeline(self, node: ast.expr) -> bool:
        callee = node.func if isinstance(node, ast.Call) else node
        if not isinstance(callee, ast.Attribute) or not isinstance(callee.value, ast.Name):
            return False
        return callee.value.id in self._pipelines


def _is_main(node: ast.stmt) -> bool:
    """Return whether a statement runs only where the module is the program."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and "__name__" in _names_in(node.test)


def _pipeline_names(tree: ast.Module) -> frozenset[str]:
    """Return the names of variables that are assigned ``Pipeline(...)``."""
    names: set[str] = set()
    for each in tree.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            constructor = each.value.func
            name = constructor.attr if isinstance(constructor, ast.Attribute) else getattr(constructor, "id", "")
            if name == "Pipeline":
                names |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def _names_bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement at the top of a module binds, at any depth."""
    if isinstance(node, _Defined):
        return {node.name}
    names: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
        elif isinstance(each, _Defined):
            names.add(each.name)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in each.names}
    if isinstance(node, ast.Assign) and any(not isinstance(target, ast.Name) for target in node.targets):
        names |= _names_in(node)  # config["a"] = 1 changes config.
    return names


def bound_names(tree: ast.Module) -> set[str] | None:
    """Return all names that a module binds; None if it has an ``import *``."""
    if any(_imports_star(each) for each in tree.body):
        return None
    return {name for each in tree.body for name in _names_bound(each)}


def _names_in(node: ast.AST) -> set[str]:
    """Return every name in a node; of ``json.dumps`` both, since either may be bound in the module."""
    names: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            names.add(each.id)
        elif isinstance(each, ast.Attribute):
            names.add(each.attr)
    return names


def _imports_star(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)


def _canonical_text(node: ast.AST, without: frozenset[int] = frozenset()) -> str:
    """Return a text that is equal for equal meaning, also across Python versions: empty fields are left out."""
    parts: list[str] = []
    for name, value in ast.iter_fields(node):
        if name in _IGNORED or value is None:
            continue
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        if name == "body" and isinstance(node, ast.Module | _Defined) and items and _is_text(items[0]):
            items = items[1:]  # The docstring.
        texts = [
            _canonical_text(each, without) if isinstance(each, ast.AST) else f"{type(each).__name__} {each!r}"
            for each in items
            if id(each) not in without
        ]
        if texts:
            parts.append(f"{name}=[{','.join(texts)}]")
    return f"{type(node).__name__}({','.join(parts)})"


def _is_text(node: object) -> bool:
    return (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
