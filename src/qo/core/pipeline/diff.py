"""What a new file would change: which jobs are edited, and what must be built again because of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from qo.core.pipeline.dag import Job
from qo.core.pipeline.plan import Plan, PlannedJob

_OPENED = frozenset({"config", "source", "scaling", "udf"})  # Named to the field within.


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
    edited: tuple[Edited, ...] = ()  # In what decides their output.
    operational: tuple[Edited, ...] = ()  # Only in how they are run: nothing to build again.
    rebuilt: tuple[Rebuilt, ...] = ()  # The added and edited ones and everything downstream of them.
    carried_over: tuple[str, ...] = ()  # Keep their data and go on as they are.

    @property
    def empty(self) -> bool:
        return not (self.added or self.removed or self.edited or self.operational or self.rebuilt)


def diff(old: Plan | None, new: Plan) -> Diff:
    """From the one to the other; from nothing, everything is added."""
    before: Mapping[str, PlannedJob] = {each.job.name: each for each in old.jobs} if old is not None else {}
    after = {each.job.name: each for each in new.jobs}
    both = sorted(before.keys() & after.keys())
    edited = [name for name in both if before[name].config_hash != after[name].config_hash]
    rebuilt = tuple(_rebuilt(before, after))
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
    """The fields in which two definitions of a job differ, as ``config.sql`` where it is worth opening them."""
    left, right = _flat(old), _flat(new)
    return tuple(sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name)))


def _flat(job: Job) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(job).items():
        if name in _OPENED:
            fields |= {f"{name}.{key}": within for key, within in value.items()}
        else:
            fields[name] = value
    return fields


def _rebuilt(before: Mapping[str, PlannedJob], after: Mapping[str, PlannedJob]) -> Iterator[Rebuilt]:
    changed: dict[str, str] = {}  # What to say of a dataset that is built anew.
    for name, new in after.items():
        old = before.get(name)
        if old is not None and old.edition_id == new.edition_id:
            continue
        if old is None:
            why, said = "is new", "is new"
        elif old.config_hash != new.config_hash:
            why, said = f"edited: {', '.join(changed_fields(old.job, new.job))}", "is edited"
        else:
            why, said = _downstream(new, changed), "is rebuilt"
        for made in new.outputs:
            changed[made.dataset_id] = f"{name}, which {said}"
        yield Rebuilt(name, why)


def _downstream(job: PlannedJob, changed: Mapping[str, str]) -> str:
    for each in job.inputs:
        if each.dataset_id in changed:
            return f"reads {changed[each.dataset_id]}"
    outside = next((each.name for each in job.inputs if each.generation_id is None), "")
    return f"reads {outside}, which is another dataset now"
