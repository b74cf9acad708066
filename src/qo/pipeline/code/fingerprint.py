"""What the code of an operator is known by, worked out from its source without importing it.

A fingerprint covers what the function of ``module:function`` can reach: of its own module the function itself, what it
names there, directly or through others, and every statement that is neither a definition nor a plain assignment; and
the whole of each module that one of these imports and that lies in the pipeline's own directories. Comments,
docstrings and formatting do not count. Neither does what the pipeline's own declarations say: that is in the DAG.

What is read at run time (files, environment, packages that are installed) is not covered: say ``code`` yourself.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from qo.pipeline.code.modules import Module, Sources, Unresolvable, parents

_SILENT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})  # Says nothing that the rest does not.
_DYNAMIC = frozenset({"globals", "locals", "vars", "eval", "exec", "__import__", "import_module"})

_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Assigned = ast.Assign | ast.AnnAssign | ast.AugAssign


def fingerprint(operator: str, roots: Sequence[Path], included: Mapping[str, bytes] | None = None) -> str:
    """Of the function that ``module:function`` names. ``roots``: the pipeline's own directories, the first one wins.

    ``included``: files that travel with the code by name. Any function may read any of them, so all of them count for
    each. Raises Unresolvable.
    """
    module, _, function = operator.partition(":")
    sources = Sources(roots)
    found = sources.find(module)
    if found is None:
        raise Unresolvable(f"there is no module {module!r} in {' or '.join(map(str, roots))}")
    reached = _Reached(found, function.partition(".")[0])
    if not reached.known:
        raise Unresolvable(f"{found.path} defines no {function!r}")
    parts = [f"{operator}\n{text}" for text in reached.texts]
    imported = {name for each in reached.nodes for name in found.imports(each)}
    parts += [f"{each.name}\n{_said(each.tree)}" for each in sources.closure(imported | parents(module))]
    parts += [
        f"file {name}\n{hashlib.sha256(body).hexdigest()}" for name, body in sorted((included or {}).items())
    ]
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


class _Reached:
    """The statements of a module that matter to one of its functions."""

    def __init__(self, module: Module, function: str) -> None:
        self._pipelines = _pipelines(module.tree)
        body = [
            each for each in module.tree.body if not (self._declares(each) or _is_main(each) or _is_text(each))
        ]
        binders: dict[str, list[int]] = {}
        for index, each in enumerate(body):
            for name in _bound(each):
                binders.setdefault(name, []).append(index)
        self.known = function in binders or any(_stars(each) for each in body)
        dynamic = any(_DYNAMIC & _named(each) for each in body)
        always = {
            index for index, each in enumerate(body) if dynamic or not isinstance(each, _Defined | _Assigned)
        }
        chosen: set[int] = set()
        waiting = [*always, *binders.get(function, ())]
        while waiting:
            index = waiting.pop()
            if index in chosen:
                continue
            chosen.add(index)
            waiting += [other for name in self._names(body[index]) for other in binders.get(name, ())]
        self.nodes = [body[index] for index in sorted(chosen)]
        self.texts = [_said(each, self._undeclared(each)) for each in self.nodes]

    def _names(self, node: ast.stmt) -> set[str]:
        left_out = set(map(id, self._decorators(node)))
        if not left_out:
            return _named(node)
        return {
            name for child in ast.iter_child_nodes(node) if id(child) not in left_out for name in _named(child)
        }

    def _declares(self, node: ast.stmt) -> bool:
        """Whether it only tells a pipeline something, as ``pipeline.publish(...)`` does."""
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            return self._on_pipeline(node.value)
        return False

    def _decorators(self, node: ast.stmt) -> list[ast.expr]:
        """Those that declare a job."""
        return [each for each in getattr(node, "decorator_list", ()) if self._on_pipeline(each)]

    def _undeclared(self, node: ast.stmt) -> frozenset[int]:
        return frozenset(map(id, self._decorators(node)))

    def _on_pipeline(self, node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else node
        if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
            return False
        return called.value.id in self._pipelines


def _is_main(node: ast.stmt) -> bool:
    """Whether it runs only where the module is the program."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and "__name__" in _named(node.test)


def _pipelines(tree: ast.Module) -> frozenset[str]:
    """The names of what is made by ``Pipeline(...)``."""
    found: set[str] = set()
    for each in tree.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            made = each.value.func
            name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
            if name == "Pipeline":
                found |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a module gives a meaning to, wherever in it that is."""
    if isinstance(node, _Defined):
        return {node.name}
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.id)
        elif isinstance(each, _Defined):
            found.add(each.name)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in each.names}
    if isinstance(node, ast.Assign) and any(not isinstance(target, ast.Name) for target in node.targets):
        found |= _named(node)  # config["a"] = 1 changes config.
    return found


def bound_names(tree: ast.Module) -> set[str] | None:
    """All names that a module gives a meaning to; None: it imports some that cannot be seen in it."""
    if any(_stars(each) for each in tree.body):
        return None
    return {name for each in tree.body for name in _bound(each)}


def _named(node: ast.AST) -> set[str]:
    """Every name in it; of ``json.dumps`` both, since either could be one that is looked for."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
    return found


def _stars(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)


def _said(node: ast.AST, without: frozenset[int] = frozenset()) -> str:
    """The same text for the same meaning, also from one Python to the next: what is empty is left out."""
    parts: list[str] = []
    for name, value in ast.iter_fields(node):
        if name in _SILENT or value is None:
            continue
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        if name == "body" and isinstance(node, ast.Module | _Defined) and items and _is_text(items[0]):
            items = items[1:]  # The docstring.
        said = [
            _said(each, without) if isinstance(each, ast.AST) else f"{type(each).__name__} {each!r}"
            for each in items
            if id(each) not in without
        ]
        if said:
            parts.append(f"{name}=[{','.join(said)}]")
    return f"{type(node).__name__}({','.join(parts)})"


def _is_text(node: object) -> bool:
    return (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
