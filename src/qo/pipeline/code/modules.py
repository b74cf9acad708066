"""The Python modules of a pipeline's own directories, read from their source and never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class Unresolvable(Exception):
    """The code of an operator cannot be found or read; why."""


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    def imports(self, node: ast.AST) -> Iterator[str]:
        """The full names of all that could be a module in what a statement imports, its parents too."""
        for each in ast.walk(node):
            names: list[str] = []
            if isinstance(each, ast.Import):
                names = [alias.name for alias in each.names]
            elif isinstance(each, ast.ImportFrom):
                base = self._base(each)
                names = [base, *(f"{base}.{alias.name}" for alias in each.names if base and alias.name != "*")]
            for name in filter(None, names):
                yield name
                yield from parents(name)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - node.level + (self.path.name == "__init__.py")]
        return ".".join([*kept, *([node.module] if node.module else [])])


@dataclass(slots=True)
class Sources:
    """Modules below some directories, each read once."""

    roots: Sequence[Path]
    known: dict[str, Module | None] = field(default_factory=dict[str, "Module | None"])

    def find(self, name: str) -> Module | None:
        """None: it lies elsewhere. Raises Unresolvable for one that is not Python."""
        if name not in self.known:
            self.known[name] = self._read(name)
        return self.known[name]

    def closure(self, names: set[str]) -> list[Module]:
        """These and all that they import, in order of name; those that lie elsewhere are left out."""
        found: dict[str, Module] = {}
        waiting = sorted(names)
        while waiting:
            name = waiting.pop()
            if name in found or (module := self.find(name)) is None:
                continue
            found[name] = module
            waiting += [each for each in module.imports(module.tree) if each not in found]
        return [found[name] for name in sorted(found)]

    def _read(self, name: str) -> Module | None:
        place = Path(*name.split("."))
        for root in self.roots:
            for path in (root / place / "__init__.py", (root / place).with_suffix(".py")):
                if path.is_file():
                    return _parse_module(name, path)
        return None


def _parse_module(name: str, path: Path) -> Module:
    try:
        return Module(name, path, ast.parse(path.read_bytes(), str(path)))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise Unresolvable(f"{path} cannot be read as Python: {error}") from error


def parents(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}
