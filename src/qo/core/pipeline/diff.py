"""The difference between two versions of a DAG: which jobs are edited, and what must be rebuilt because of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from qo.core.pipeline.dag import Job
from qo.core.pipeline.plan import Plan, PlannedJob

_NESTED = frozenset({"config", "source", "scaling", "udf"})  # Reported as the nested field, such as config.query.


@dataclass(frozen=True, slots=True)
class Edited:
    job: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    job: str
    why: str


@dataclass(frozen=True, slots=True)
class Diff:
    """Jobs by name, in order of name, except the rebuilt ones: each follows those it reads."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    edited: tuple[Edited, ...] = ()  # In fields that decide their output.
    operational: tuple[Edited, ...] = ()  # Only in how they run: nothing is rebuilt.
    rebuilt: tuple[Rebuilt, ...] = ()  # The added and edited ones and everything downstream of them.
    carried_over: tuple[str, ...] = ()  # They keep their data and continue.

    @property
    def empty(self) -> bool:
        return not (self.added or self.removed or self.edited or self.operational or self.rebuilt)


def diff(old: Plan | None, new: Plan) -> Diff:
    """Compare two plans. Without an old one, every job is added."""
    before: Mapping[str, PlannedJob] = {each.job.name: each for each in old.jobs} if old is not None else {}
    after = {each.job.name: each for each in new.jobs}
    both = sorted(before.keys() & after.keys())
    edited = [name for name in both if before[name].config_hash != after[name].config_hash]
    rebuilt = tuple(_find_rebuilt(before, after))
    built = {each.job for each in rebuilt}
    return Diff(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        edited=tuple(Edited(name, changed_fields(before[name].job, after[name].job)) for name in edited),
        operational=tuple(
            Edited(name, changed_fields(before[name].job, after[name].job))
            for name in both
            if name not in edited and before[name].job != after[name].job
        ),
        rebuilt=rebuilt,
        carried_over=tuple(name for name in both if name not in built),
    )


def changed_fields(old: Job, new: Job) -> tuple[str, ...]:
    """Return the fields in which two definitions of a job differ, nested ones as ``config.query``."""
    before, after = _flatten(old), _flatten(new)
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def _flatten(job: Job) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(job).items():
        if name in _NESTED:
            fields |= {f"{name}.{key}": within for key, within in value.items()}
        else:
            fields[name] = value
    return fields


def _find_rebuilt(before: Mapping[str, PlannedJob], after: Mapping[str, PlannedJob]) -> Iterator[Rebuilt]:
    changed: dict[str, str] = {}  # By dataset that is rebuilt: which job makes it, and why.
    for name, new in after.items():
        old = before.get(name)
        if old is not None and old.edition_id == new.edition_id:
            continue
        if old is None:
            why, state = "is new", "is new"
        elif old.config_hash != new.config_hash:
            why, state = f"edited: {', '.join(changed_fields(old.job, new.job))}", "is edited"
        else:
            why, state = _upstream_change(new, changed), "is rebuilt"
        for output in new.outputs:
            changed[output.dataset_id] = f"{name}, which {state}"
        yield Rebuilt(name, why)


def _upstream_change(job: PlannedJob, changed: Mapping[str, str]) -> str:
    for each in job.inputs:
        if each.dataset_id in changed:
            return f"reads {changed[each.dataset_id]}"
    outside = next((each.name for each in job.inputs if each.generation_id is None), "")
    return f"reads {outside}, which is another dataset now"
