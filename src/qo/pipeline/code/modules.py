"""The Python modules of a pipeline's own directories, read from their source and never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class Unresolvable(Exception):
    """The code of an operator cannot be found or read."""


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    def imports(self, node: ast.AST) -> Iterator[str]:
        """Yield the full names of everything in a statement that may be a module, and of its parents."""
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
        base = parts[: len(parts) - node.level + (self.path.name == "__init__.py")]
        return ".".join([*base, *([node.module] if node.module else [])])


@dataclass(slots=True)
class Sources:
    """Modules below some directories, each read once."""

    roots: Sequence[Path]
    cache: dict[str, Module | None] = field(default_factory=dict[str, "Module | None"])

    def find(self, name: str) -> Module | None:
        """Return a module; None if it is not below the roots. Raises Unresolvable for a file that is not Python."""
        if name not in self.cache:
            self.cache[name] = self._read(name)
        return self.cache[name]

    def closure(self, names: set[str]) -> list[Module]:
        """Return these modules and all that they import, in order of name, without those outside the roots."""
        modules: dict[str, Module] = {}
        waiting = sorted(names)
        while waiting:
            name = waiting.pop()
            if name in modules or (module := self.find(name)) is None:
                continue
            modules[name] = module
            waiting += [each for each in module.imports(module.tree) if each not in modules]
        return [modules[name] for name in sorted(modules)]

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
