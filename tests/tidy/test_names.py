"""Names say what a thing is or does, and a file name stands for one idea."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source_trees import parse_file

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "qo"

# Speech verbs and bare participles: a function is a verb with its object, a value is a noun.
VAGUE = re.compile(
    r"""_*(?:agreed|answered|asked|begun|brought|called|chosen|done|drawn|expressed|felt|forgotten|formed|found|given|gone
    |got|heard|judged|kept|known|learned|left|made|meant|named|noted|opened|promised|remembered|said|says|seen|sent|shown
    |spelled|spoken|stated|stood|taken|tells|told|wanted|weighed|written)_*""",
    re.VERBOSE | re.IGNORECASE,
)


# Fields of bodies on the wire, stored states, and an argument that PySpark passes by name.
EXEMPT = {
    "api/contract/backfill.py": {"made", "left"},
    "api/contract/dag.py": {"left"},
    "api/contract/first_pages.py": {"done"},
    "api/contract/garbage.py": {"gone", "judged"},
    "api/contract/planning.py": {"done"},
    "core/pipeline/states.py": {"DONE"},
    "dispatcher/outbox/outbox.py": {"DONE"},
    "spark/engine/progress.py": {"done"},
}


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module defines, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def test_no_name_is_a_bare_speech_verb_or_participle() -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name, line in names_in(parse_file(path))
        if VAGUE.fullmatch(name) and name not in EXEMPT.get(str(path.relative_to(SOURCE)), ())
    ]
    assert vague == []


# One noun through the layers: its rules in core, its body on the wire, its route, its view, its command.
REPEATED = {
    "admission": {"worker/layers", "worker/loop"},
    "attempts": {"dispatcher/http", "worker/loop"},
    "backfill": {"api/contract", "cli/pipelines", "dispatcher/engine/loops"},
    "backfills": {"dispatcher/http", "dispatcher/versions"},
    "board": {"core", "queue"},
    "catalog": {"api/contract", "cli/pipelines", "dispatcher/http"},
    "aws": {"dispatcher", "function"},
    "bundle": {"api/contract", "cli/pipelines", "core/pipeline"},
    "child": {"agent/code", "worker/executors"},
    "columns": {"core/pipeline", "spark/io"},
    "control": {"cli/queue", "core", "queue", "worker/loop"},
    "dag": {"api/contract", "cli/pipelines", "core/pipeline"},
    "dataset": {"api/contract", "cli/pipelines"},
    "datasets": {"dispatcher/http", "dispatcher/state", "dispatcher/views"},
    "depth": {"cli/queue", "core", "queue"},
    "dispatcher": {"cli/run", "config", "pipeline/operators"},
    "event": {"api/contract", "core/pipeline"},
    "functions": {"pipeline/code", "spark/operators"},
    "garbage": {"api/contract", "dispatcher/engine", "dispatcher/http"},
    "invalidation": {"api/contract", "dispatcher/engine/loops"},
    "kinds": {"config", "pipeline"},
    "lifecycle": {"cli/admin", "core"},
    "lineage": {"agent", "dispatcher/views"},
    "metrics": {"dispatcher/engine", "dispatcher/http", "worker/observe"},
    "monitor": {"cli/run", "queue"},
    "openlineage": {"agent", "core/pipeline"},
    "outputs": {"dispatcher/commits", "spark"},
    "pipeline_progress": {"dispatcher/views", "up"},
    "planning": {"api/contract", "cli/pipelines", "dispatcher/http", "dispatcher/versions"},
    "policy": {"cli/admin", "core/pipeline", "ui"},
    "pressure": {"api/contract", "core/pipeline", "dispatcher/engine/loops"},
    "progress": {"spark/engine", "worker/api"},
    "purge": {"cli/queue", "dispatcher/engine/loops"},
    "quality": {
        "api/contract",
        "cli/pipelines",
        "dispatcher/commits",
        "dispatcher/http",
        "dispatcher/state",
        "dispatcher/views",
        "spark/quality",
    },
    "queue": {"cli/pipelines", "config", "queue"},
    "reading": {"api/contract", "dispatcher/http", "dispatcher/views"},
    "push": {"config", "core"},
    "relay": {"cli/run", "outbox"},
    "retention": {"config", "core", "dispatcher/commits"},
    "run_log": {"api/contract", "cli/pipelines", "core", "dispatcher/http", "dispatcher/views"},
    "schedule": {"cli/queue", "core"},
    "segments": {"agent", "dispatcher/attempts", "dispatcher/http"},
    "serve": {"cli/run", "config"},
    "scaler": {"cli/run", "scaler"},
    "scaling": {"api/contract", "cli/pipelines", "config", "core/pipeline", "dispatcher/state"},
    "service": {"agent", "dispatcher", "scaler", "scheduler", "sink", "worker"},
    "serving": {"dispatcher/http", "ui"},
    "settings": {"cli/admin", "config"},
    "source": {"api/contract", "cli/pipelines"},
    "sink": {"api/contract", "cli/run", "config", "core/pipeline"},
    "sinks": {"dispatcher/http", "dispatcher/views"},
    "sources": {"dispatcher/http", "pipeline"},
    "spark": {"config", "pipeline/operators"},
    "sqlite_file": {"dispatcher/state", "store"},
    "statistics": {"api/contract", "dispatcher/http"},
    "stream": {"spark/operators", "spark/stream"},
    "sweeper": {"dispatcher/engine/loops", "queue"},
    "task": {"api/contract", "core"},
    "task_view": {"api/contract", "cli/queue"},
    "tasks": {"cli/queue", "dispatcher/http", "queue"},
    "token": {"api/contract", "cli/admin"},
    "topology": {"core/pipeline", "dispatcher/state"},
    "transport": {"api", "store/s3"},
    "ui": {"cli/run", "config"},
    "up": {"cli/run", "up"},
    "why": {"api/contract", "cli/pipelines"},
    "worker": {"cli/run", "config", "worker"},
}


def test_a_file_name_stands_for_one_idea() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        if path.stem not in ("__init__", "__main__") and not {"migrations", "testing"} & set(path.parts):
            places[path.stem].add(str(path.parent.relative_to(SOURCE)))
    repeated = {name: folders for name, folders in places.items() if len(folders) > 1}
    assert repeated == REPEATED
