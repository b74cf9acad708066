"""Every state that a model can come to, each looked at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)

Steps = Callable[[S], Iterable[tuple[str, S]]]  # What can happen in a state, and what it comes to.
Problem = Callable[[S], str | None]  # What is wrong with a state.


class Broken(AssertionError):
    """The model came to a state that must not be. The shortest way there is told."""


@dataclass(frozen=True, slots=True)
class Explored(Generic[S]):
    states: int
    steps: int
    goals: int


def explore(start: S, steps: Steps[S], problem: Problem[S], goal: Callable[[S], bool]) -> Explored[S]:
    """Breadth first, until nothing is new. From every state a goal must be within reach.

    Raises Broken with the shortest history that leads to a problem, or to a state that leads to no goal.
    """
    came: dict[S, tuple[S, str] | None] = {start: None}
    before: dict[S, list[S]] = {}
    waiting, taken, goals = deque([start]), 0, []
    while waiting:
        state = waiting.popleft()
        if (what := problem(state)) is not None:
            raise Broken(f"{what}\n" + "\n".join(_history(came, state)))
        if goal(state):
            goals.append(state)
        for label, after in steps(state):
            taken += 1
            before.setdefault(after, []).append(state)
            if after not in came:
                came[after] = state, label
                waiting.append(after)
    if (lost := _unreached(came, before, goals)) is not None:
        raise Broken("from here it never ends well\n" + "\n".join(_history(came, lost)))
    return Explored(len(came), taken, len(goals))


def _unreached(came: Iterable[S], before: dict[S, list[S]], goals: list[S]) -> S | None:
    """A state from which no goal is within reach, the first that was found."""
    good, waiting = set(goals), deque(goals)
    while waiting:
        for earlier in before.get(waiting.popleft(), ()):
            if earlier not in good:
                good.add(earlier)
                waiting.append(earlier)
    return next((state for state in came if state not in good), None)


def _history(came: dict[S, tuple[S, str] | None], state: S) -> Iterator[str]:
    labels: list[str] = []
    while (link := came[state]) is not None:
        state, label = link
        labels.append(label)
    yield from (f"  {n:>3} {label}" for n, label in enumerate(reversed(labels), 1))
