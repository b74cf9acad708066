"""Every state that a model can come to, each looked at once."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from sys import intern
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
    numbers: dict[S, int] = {start: 0}  # In the order in which they were found.
    came, labels = array("l", [-1]), [""]
    earlier, later = array("l"), array("l")  # The two ends of each step.
    good, waiting, n = bytearray(1), deque([start]), 0
    while waiting:
        state = waiting.popleft()
        if (what := problem(state)) is not None:
            raise Broken(f"{what}\n" + "\n".join(_history(came, labels, n)))
        good[n] = goal(state)
        for label, after in steps(state):
            number = numbers.setdefault(after, len(numbers))
            if number == len(came):
                came.append(n)
                labels.append(intern(label))
                good.append(0)
                waiting.append(after)
            earlier.append(n)
            later.append(number)
        n += 1
    goals = sum(good)
    _spread(good, earlier, later)
    if (lost := good.find(0)) >= 0:
        raise Broken("from here it never ends well\n" + "\n".join(_history(came, labels, lost)))
    return Explored(n, len(later), goals)


def _spread(good: bytearray, earlier: array[int], later: array[int]) -> None:
    """From what leads to something good, back to the beginning. Most steps lead to what was found later."""
    news = True
    while news:
        news = False
        for before, after in zip(reversed(earlier), reversed(later), strict=True):
            if good[after] and not good[before]:
                good[before] = news = True


def _history(came: array[int], labels: list[str], n: int) -> Iterator[str]:
    way: list[str] = []
    while came[n] >= 0:
        way.append(labels[n])
        n = came[n]
    yield from (f"  {n:>3} {label}" for n, label in enumerate(reversed(way), 1))
