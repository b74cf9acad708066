"""Renames the modules of a bundle, so that two versions of them can be imported in one interpreter.

    import helpers            import qo_code_1f3a.helpers as helpers
    import jobs.clean         import qo_code_1f3a.jobs.clean as _qo_; from qo_code_1f3a import jobs
    from jobs import clean    from qo_code_1f3a.jobs import clean

Only import statements are rewritten, in place: every other line stays where it was, so a traceback shows the lines that
the user wrote. The files are rewritten, instead of hooking the import, because Spark's Python processes import the same
files, and qo may not be installed there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

_PLACE = "_qo_"  # A throwaway name, for statements that only import.


@dataclass(frozen=True, slots=True)
class Names:
    """The modules of a bundle."""

    modules: frozenset[str]  # Those with a file, including packages with an ``__init__``.
    directories: frozenset[str]  # Namespace packages, of which other distributions may have a part.

    @classmethod
    def of(cls, paths: Iterable[str]) -> Names:
        dotted = [
            path.removesuffix(".py").removesuffix("/__init__").split("/") for path in paths if path.endswith(".py")
        ]
        modules = frozenset(".".join(parts) for parts in dotted)
        above = {".".join(parts[:length]) for parts in dotted for length in range(1, len(parts))}
        return cls(modules, frozenset(above - modules))

    def imports(self, alias: ast.alias) -> bool:
        """Return whether ``import NAME`` imports a module of the bundle."""
        return alias.name in self.modules or alias.name in self.directories

    def provides(self, node: ast.ImportFrom) -> bool:
        """Return whether ``from NAME import ...`` imports something of the bundle."""
        if node.level or node.module is None:
            return False
        parts = (f"{node.module}.{alias.name}" for alias in node.names)
        below = node.module in self.directories and any(
            each in self.modules or each in self.directories for each in parts
        )
        return node.module in self.modules or below


def rename_imports(source: str, package: str, names: Names) -> str:
    """Return the source of a module with the bundle's other modules imported from ``package``.

    Lines must end with a newline alone, as Python's own reader leaves them. Raises SyntaxError for a source that
    is not Python.
    """
    lines = [line.encode() for line in source.split("\n")]  # Columns of the tree count bytes.
    for node in _find_imports(ast.parse(source), names):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset or 0 :]
        lines[first] = before + _rewrite_import(node, package, names).encode() + after
        # Keep the number of lines, so that line numbers stay the same.
        lines[first + 1 : last + 1] = [b""] * (last - first)
    return b"\n".join(lines).decode()


def _find_imports(tree: ast.Module, names: Names) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports of the bundle's modules, the last first, so that earlier positions stay valid."""
    statements = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and any(map(names.imports, node.names)))
        or (isinstance(node, ast.ImportFrom) and names.provides(node))
    ]
    return sorted(statements, key=lambda node: (node.lineno, node.col_offset), reverse=True)


def _rewrite_import(node: ast.Import | ast.ImportFrom, package: str, names: Names) -> str:
    if isinstance(node, ast.ImportFrom):
        members = ", ".join(_format_alias(alias.name, alias.asname) for alias in node.names)
        return f"from {package}.{node.module} import {members}"
    statements: list[str] = []
    for alias in node.names:
        top = alias.name.partition(".")[0]
        if not names.imports(alias):
            statements.append(f"import {_format_alias(alias.name, alias.asname)}")
        elif alias.asname is not None or top == alias.name:
            statements.append(f"import {package}.{alias.name} as {alias.asname or alias.name}")
        else:
            statements.append(f"import {package}.{alias.name} as {_PLACE}; from {package} import {top}")
    return "; ".join(statements)


def _format_alias(name: str, asname: str | None) -> str:
    return name if asname is None else f"{name} as {asname}"
