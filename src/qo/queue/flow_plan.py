"""Flows: tasks that depend on each other, planned as one and submitted as one.

    plan = qo.chain(
        qo.NewTask("extract", {"day": "2026-11-17"}),
        qo.group([qo.NewTask("clean", part) for part in parts], then=qo.NewTask("merge")),
        qo.NewTask("publish"),
    )
    tasks = await queue.submit_flow(plan, key="nightly-2026-11-17")

All ids follow from the key before anything is written, so that submitting the flow again completes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from qo.core.waits import DEPENDENTS_MAX
from qo.errors import UsageError
from qo.queue.options import NewTask, keyed_id

KEY_SCOPE = "flow"


class Step(NamedTuple):
    """One task of a flow, ready to be written."""

    name: str
    new: NewTask  # With its key, and all that it depends on.
    dependents: tuple[str, ...]  # The ids of the tasks in the flow that depend on it, …
    within: tuple[str, ...]  # … and of those that it depends on.
    height: int  # How many others depend on it in a row. Those of height 0 are written first.


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """Tasks, each with the places of those that come before it. Made by ``chain``, ``group`` and ``dag``."""

    tasks: tuple[NewTask, ...]
    after: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]

    @property
    def first(self) -> tuple[int, ...]:
        """The tasks that depend on none of the others."""
        return tuple(place for place, before in enumerate(self.after) if not before)

    @property
    def last(self) -> tuple[int, ...]:
        """The tasks that none of the others depend on."""
        befores = {place for before in self.after for place in before}
        return tuple(place for place in range(len(self.tasks)) if place not in befores)

    def steps(self, key: str) -> list[Step]:
        """Return the tasks as they are to be submitted under this key. Raises UsageError."""
        if not key:
            raise UsageError("the key of a flow must not be empty")
        keyed = [_with_key(new, f"{key}/{name}") for new, name in zip(self.tasks, self.names, strict=True)]
        ids = [keyed_id(new.task_type, new.options) for new in keyed]
        followers: list[list[int]] = [[] for _ in ids]
        for place, before in enumerate(self.after):
            for each in before:
                followers[each].append(place)
        heights = self._heights(followers)
        return [self._step(place, new, ids, followers[place], heights[place]) for place, new in enumerate(keyed)]

    def _step(self, place: int, new: NewTask, ids: list[str], followers: list[int], height: int) -> Step:
        within = tuple(ids[each] for each in self.after[place])
        if len(followers) > DEPENDENTS_MAX:
            raise UsageError(
                f"{len(followers):,} tasks of the flow depend on its task {self.names[place]}; at most "
                f"{DEPENDENTS_MAX:,} may: put tasks in between"
            )
        options = replace(new.options, depends_on=(*within, *new.options.depends_on))
        dependents = tuple(ids[each] for each in followers)
        return Step(self.names[place], NewTask(new.task_type, new.input, options), dependents, within, height)

    def _heights(self, followers: list[list[int]]) -> list[int]:
        heights = [-1] * len(followers)
        places = list(range(len(followers)))
        while places:
            settled = [place for place in places if all(heights[each] >= 0 for each in followers[place])]
            if not settled:
                names = ", ".join(self.names[place] for place in places[:5])
                raise UsageError(f"these tasks of the flow depend on each other in a circle, or on one: {names}")
            for place in settled:
                heights[place] = 1 + max((heights[each] for each in followers[place]), default=-1)
            places = [place for place in places if heights[place] < 0]
        return heights


Part = NewTask | FlowPlan


def chain(*parts: Part) -> FlowPlan:
    """Run the parts one after another: each starts when all of the one before has completed."""
    return _number(_join([_plan(part) for part in parts], in_order=True))


def group(parts: Iterable[Part], then: Part | None = None) -> FlowPlan:
    """Run the parts side by side, and ``then`` when all of them have completed."""
    together = _join([_plan(part) for part in parts], in_order=False)
    return _number(together if then is None else _join([together, _plan(then)], in_order=True))


def dag(tasks: Mapping[str, NewTask], after: Mapping[str, Sequence[str]]) -> FlowPlan:
    """Run tasks by name, each after those that ``after`` lists for it."""
    places = {name: place for place, name in enumerate(tasks)}
    for name in [*after, *(before for befores in after.values() for before in befores)]:
        if name not in places:
            raise UsageError(f"there is no task {name!r} in the flow; it has {', '.join(places) or 'none'}")
    befores = tuple(tuple(places[before] for before in dict.fromkeys(after.get(name, ()))) for name in places)
    plan = FlowPlan(tuple(tasks.values()), befores, tuple(tasks))
    plan.steps("check")  # A circle is a mistake in the plan: say so here, where it was made.
    return plan


def layers(steps: Sequence[Step]) -> list[list[str]]:
    """Return the names in the order in which to write them: each layer only after all that depends on it."""
    by_height: dict[int, list[str]] = {}
    for step in steps:
        by_height.setdefault(step.height, []).append(step.name)
    return [by_height[height] for height in sorted(by_height)]


def _plan(part: Part) -> FlowPlan:
    if isinstance(part, NewTask):
        return FlowPlan((part,), ((),), ("0",))
    if not isinstance(part, FlowPlan):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a part of a flow is a NewTask, a chain, a group or a dag, not {type(part).__name__}")
    return part


def _join(plans: Sequence[FlowPlan], *, in_order: bool) -> FlowPlan:
    if not plans:
        raise UsageError("a flow needs at least one task")
    tasks: list[NewTask] = []
    after: list[tuple[int, ...]] = []
    previous: tuple[int, ...] = ()
    for plan in plans:
        start = len(tasks)
        tasks += plan.tasks
        shifted = (tuple(start + each for each in before) for before in plan.after)
        after += [before or (previous if in_order else ()) for before in shifted]
        previous = tuple(start + each for each in plan.last)
    return FlowPlan(tuple(tasks), tuple(after), ())


def _number(plan: FlowPlan) -> FlowPlan:
    return replace(plan, names=tuple(str(place) for place in range(len(plan.tasks))))


def _with_key(new: NewTask, key: str) -> NewTask:
    if new.options.unique is not None:
        raise UsageError("tasks of a flow cannot be unique: give submit_flow a key, and the flow is")
    if new.options.key is not None:
        raise UsageError("tasks of a flow have no keys of their own: give submit_flow the key of the flow")
    return NewTask(new.task_type, new.input, replace(new.options, key=key, key_scope=KEY_SCOPE))
