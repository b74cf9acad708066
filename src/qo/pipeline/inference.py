"""What follows from the rest of a document and may be left out: activation, runtime, number of outputs, strategies.

Only the document decides, never the code or the installation, so everybody who reads it comes to the same result, and
a value that was left out has the edition of the same value written down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from qo.core.pipeline.dag import Activation, Join, Refresh, SourceKind, Strategy, UpdateStrategy
from qo.pipeline.operators.built_in import BUILT_IN
from qo.pipeline.problems import Document
from qo.pipeline.sources import CODELESS_JOB, CODELESS_KINDS, SOURCES

Fields = dict[str, Any]

SPARK, PYTHON = "spark", "python"


def infer(document: Document) -> Document:
    """Return the document with the fields filled in that its jobs leave out. Values of a wrong shape are left alone."""
    value: Any = document.value
    return replace(document, value=_infer(cast("Fields", value))) if isinstance(value, dict) else document


def _infer(document: Fields) -> Fields:
    jobs = document.get("jobs")
    if not isinstance(jobs, list):
        return document
    listed = cast("list[Any]", jobs)
    defaults = _mapping(document.get("defaults"))
    cursors = _find_cursor_readers([_mapping(each) for each in listed], document)
    filled = [_fill_in(_mapping(each), defaults, cursors) if isinstance(each, dict) else each for each in listed]
    return {**document, "jobs": filled}


def _fill_in(job: Fields, defaults: Fields, cursor_readers: frozenset[str]) -> Fields:
    is_source = job.get("activation", "source" in job and "source") == Activation.SOURCE
    inferred: Fields = {"activation": (Activation.SOURCE if is_source else Activation.REACTIVE).value}
    # A source of an unknown kind is wrong anyway; that it has no operator need not be said, too.
    runs_no_code = _kind(job) in CODELESS_KINDS or ("source" in job and _kind(job) is None)
    inferred |= CODELESS_JOB if runs_no_code else {"runtime": _runtime(job, defaults)}
    spec = BUILT_IN.get(str(job.get("operator")))
    inferred["outputs"] = (
        1 if spec is None or spec.outputs_of is None else spec.outputs_of(_mapping(job.get("config")))
    )
    if "unique_key" in job:
        inferred["update_strategy"] = UpdateStrategy.APPEND.value
    if not is_source:
        by_cursor = str(job.get("name")) in cursor_readers
        strategy = Strategy.PER_UPDATE if by_cursor else Strategy.PER_PARTITION
        inferred["execution_strategy"] = (Strategy.PER_CHANGE if _works_by_changes(job) else strategy).value
    return {**{name: value for name, value in inferred.items() if name not in job}, **job}


def _runtime(job: Fields, defaults: Fields) -> Any:
    operator = job.get("operator")
    spec = BUILT_IN.get(operator) if isinstance(operator, str) else None
    if spec is not None:
        return spec.runtimes[0]
    return defaults.get("runtime", PYTHON if _kind(job) == SourceKind.ALWAYS_ON else SPARK)


def _find_cursor_readers(jobs: list[Fields], document: Fields) -> frozenset[str]:
    """Return the jobs that work by cursor: their names, from the sources of cursors along all inputs that trigger."""
    by_name = {str(job.get("name")): job for job in jobs}
    readers: dict[str, list[str]] = {}
    for name, job in by_name.items():
        for producer in _find_producers(job, document):
            readers.setdefault(producer, []).append(name)
    by_cursor: set[str] = set()
    waiting = deque(name for name, job in by_name.items() if _emits_cursors(job))
    while waiting:
        for reader in readers.get(waiting.popleft(), ()):
            if reader not in by_cursor and _may_work_by_cursor(by_name[reader]):
                by_cursor.add(reader)
                if not _emits_partitions(by_name[reader]):
                    waiting.append(reader)
    return frozenset(by_cursor)


def _find_producers(job: Fields, document: Fields) -> Iterator[str]:
    """Yield the jobs of this document whose events trigger a job."""
    inputs = job.get("inputs")
    for each in cast("list[Any]", inputs) if isinstance(inputs, list) else []:
        origin = _mapping(_mapping(each).get("from"))
        if _mapping(each).get("trigger") is False:
            continue
        published = _mapping(document.get("publish")).get(str(origin.get("dataset")))
        yield str(origin.get("job") or _mapping(_mapping(published).get("from")).get("job"))


def _emits_cursors(job: Fields) -> bool:
    """Whether a job emits cursors as far as its own fields say. One with declared partitions emits those."""
    if "partitions" in job or _emits_partitions(job):
        return False
    kind = _kind(job)
    if kind is None:
        return job.get("execution_strategy") == Strategy.PER_UPDATE or _works_by_changes(job)
    return kind == SourceKind.ALWAYS_ON or SOURCES[kind].emits_cursors


def _works_by_changes(job: Fields) -> bool:
    spec = BUILT_IN.get(str(job.get("operator")))
    return spec is not None and spec.strategy is Strategy.PER_CHANGE


def _emits_partitions(job: Fields) -> bool:
    spec = BUILT_IN.get(str(job.get("operator")))
    return spec is not None and spec.emits_partitions


def _may_work_by_cursor(job: Fields) -> bool:
    """Whether a reader of cursors does not say anything that needs partitions."""
    spec = BUILT_IN.get(str(job.get("operator")))
    inputs = job.get("inputs")
    refreshes = any(
        _mapping(each).get("refresh") == Refresh.ON_CHANGE
        for each in (cast("list[Any]", inputs) if isinstance(inputs, list) else [])
    )
    only = spec.strategy if spec is not None else None
    by_partition = (
        refreshes
        or "partitions" in job
        or job.get("join") == Join.ALL
        or only in (Strategy.PER_PARTITION, Strategy.PER_CHANGE)
    )
    return not by_partition and "execution_strategy" not in job


def _kind(job: Mapping[str, Any]) -> SourceKind | None:
    kind = _mapping(job.get("source")).get("kind")
    return SourceKind(kind) if isinstance(kind, str) and kind in tuple(SourceKind) else None


def _mapping(value: Any) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else {}
