"""Gives the modules of a bundle names of their own, so that two versions of them live in one interpreter.

    import helpers            import qo_code_1f3a.helpers as helpers
    import jobs.clean         import qo_code_1f3a.jobs.clean as _qo_; from qo_code_1f3a import jobs
    from jobs import clean    from qo_code_1f3a.jobs import clean

Only import statements are rewritten, in place: every other line stays where it was, so a traceback shows the lines that
the user wrote. The names stand in the files themselves and not in a hook of this interpreter, because Spark's Python
processes import the same files, and qo may not be installed there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

_PLACE = "_qo_"  # Bound only so that the statement imports.


@dataclass(frozen=True, slots=True)
class Names:
    """The modules of a bundle."""

    modules: frozenset[str]  # Those that a file stands for, packages with an ``__init__`` too.
    directories: frozenset[str]  # Packages without one, of which others may have a part.

    @classmethod
    def of(cls, paths: Iterable[str]) -> Names:
        dotted = [
            path.removesuffix(".py").removesuffix("/__init__").split("/") for path in paths if path.endswith(".py")
        ]
        modules = frozenset(".".join(parts) for parts in dotted)
        above = {".".join(parts[:length]) for parts in dotted for length in range(1, len(parts))}
        return cls(modules, frozenset(above - modules))

    def imports(self, alias: ast.alias) -> bool:
        """Whether ``import NAME`` means a module of the bundle."""
        return alias.name in self.modules or alias.name in self.directories

    def provides(self, node: ast.ImportFrom) -> bool:
        """Whether ``from NAME import ...`` takes something out of the bundle."""
        if node.level or node.module is None:
            return False
        parts = (f"{node.module}.{alias.name}" for alias in node.names)
        below = node.module in self.directories and any(
            each in self.modules or each in self.directories for each in parts
        )
        return node.module in self.modules or below


def rename_imports(source: str, package: str, names: Names) -> str:
    """The source of a module of a bundle, importing the bundle's other modules as parts of ``package``.

    Lines end with a newline and nothing else, as Python's own reader leaves them. Raises SyntaxError for a source that
    is not Python.
    """
    lines = [line.encode() for line in source.split("\n")]  # Columns of the tree count bytes.
    for node in _imports(ast.parse(source), names):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset or 0 :]
        lines[first] = before + _renamed(node, package, names).encode() + after
        # As many lines as before: what follows stays at its number.
        lines[first + 1 : last + 1] = [b""] * (last - first)
    return b"\n".join(lines).decode()


def _imports(tree: ast.Module, names: Names) -> list[ast.Import | ast.ImportFrom]:
    """Those that name a module of the bundle, the last first, so that earlier places stay as they are."""
    found = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and any(map(names.imports, node.names)))
        or (isinstance(node, ast.ImportFrom) and names.provides(node))
    ]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset), reverse=True)


def _renamed(node: ast.Import | ast.ImportFrom, package: str, names: Names) -> str:
    if isinstance(node, ast.ImportFrom):
        taken = ", ".join(_aliased(alias.name, alias.asname) for alias in node.names)
        return f"from {package}.{node.module} import {taken}"
    statements: list[str] = []
    for alias in node.names:
        top = alias.name.partition(".")[0]
        if not names.imports(alias):
            statements.append(f"import {_aliased(alias.name, alias.asname)}")
        elif alias.asname is not None or top == alias.name:
            statements.append(f"import {package}.{alias.name} as {alias.asname or alias.name}")
        else:
            statements.append(f"import {package}.{alias.name} as {_PLACE}; from {package} import {top}")
    return "; ".join(statements)


def _aliased(name: str, asname: str | None) -> str:
    return name if asname is None else f"{name} as {asname}"
