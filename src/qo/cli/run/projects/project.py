"""A project to begin with: the texts of its files, and writing them without touching what is there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qo.errors import UsageError

NAME = "{project}"  # In the texts of files; braces of Python stay as they are.
IGNORED = ".qo/\n__pycache__/\n.pytest_cache/\nspark-warehouse/\nmetastore_db/\n"


@dataclass(frozen=True, slots=True)
class Project:
    """``next_steps`` are commands, in their order."""

    summary: str
    files: Mapping[str, str]
    next_steps: tuple[str, ...]
    has_pipeline: bool = True  # Its definition is written in an editor, which needs the schema.


def write_project(project: Project, directory: Path, schema: str) -> list[str]:
    """Write the files of a project; return their names. Raises UsageError if one of them is there already."""
    files = {".gitignore": IGNORED, **project.files}
    if project.has_pipeline:
        files["pipeline.schema.json"] = schema
    present = sorted(name for name in files if (directory / name).exists())
    if present:
        raise UsageError(
            f"{directory} has {', '.join(present)} already: name another directory, or remove what is there"
        )
    name = name_project(directory)
    for path, text in files.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace(NAME, name), "utf-8")
    return sorted(files)


def name_project(directory: Path) -> str:
    """Return the name of a directory as a name of a pipeline."""
    name = re.sub(r"[^a-z0-9]+", "_", directory.resolve().name.lower()).strip("_")[:100]
    return name if re.match("[a-z]", name) else f"project_{name}".rstrip("_")
