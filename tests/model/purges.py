"""The protocol of a purge, as ``queue.task_removal`` follows it, against a replay and a submission at the same time.

One task that has ended, its older version, and its input, which is kept apart. A purger removes them version by
version, and may die after any request and start again. Somebody replays the task; somebody else submits the same key
with the same input, whose data has the same key. Requests of one client come one after the other; those of a delete
of many happen in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from model.explorer import Explored, explore

OLDER, ENDED, REPLAYED, CREATED = 1, 2, 3, 4  # The versions of the task; the first is a state long past.
OLD, YOUNG = 1, 2  # The versions of its data; the second is of the new submission.


class State(NamedTuple):
    task: tuple[int, ...] = (OLDER, ENDED)  # Oldest first; the last is current.
    data: tuple[int, ...] = (OLD,)
    purger: str = "idle"
    seen: int = 0  # The version that the purger read, or was about to remove.
    to_remove: tuple[int, ...] = ()
    deaths: int = 0
    replayer: str = "idle"
    submitter: str = "idle"
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    deaths: int = 1
    latest_last: bool = True
    looks_again: bool = True  # Whether the task is looked for again before its data goes.
    grace: bool = True


class Purges:
    def __init__(self, config: Config) -> None:
        self._config = config

    def explore(self) -> Explored[State]:
        return explore(State(), self._steps, problem, _is_over)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._purge(state)
        yield from _replay(state)
        yield from _submit(state)
        if state.purger not in ("idle", "done") and state.deaths < self._config.deaths:
            yield "the purger dies", state._replace(purger="idle", seen=0, to_remove=(), deaths=state.deaths + 1)

    def _purge(self, state: State) -> Iterator[tuple[str, State]]:
        current = state.task[-1] if state.task else 0
        match state.purger:
            case "idle":
                following = "listing" if current == ENDED else "data"
                yield "the purger reads the task", state._replace(purger=following, seen=current)
            case "listing":
                if current != state.seen:
                    yield "the purger sees that it changed", state._replace(purger="data")
                elif self._config.latest_last:
                    older = tuple(each for each in state.task if each != state.seen)
                    yield "the purger lists versions", state._replace(purger="older", to_remove=older)
                else:
                    yield "the purger lists versions", state._replace(purger="latest", to_remove=state.task)
            case "older":
                yield from self._removals(state, "latest", (state.seen,))
            case "latest":
                yield from self._removals(state, "data", ())
            case "data":
                old = tuple(each for each in state.data if each == OLD or not self._config.grace)
                yield "the purger lists data", state._replace(purger="looking", to_remove=old)
            case "looking":
                stays = self._config.looks_again and current != 0
                following = (
                    state._replace(purger="done", to_remove=()) if stays else state._replace(purger="removing")
                )
                yield "the purger looks for the task", following
            case "removing":
                yield from self._data_removals(state)
            case _:
                return

    def _removals(self, state: State, following: str, left: tuple[int, ...]) -> Iterator[tuple[str, State]]:
        if not state.to_remove:
            yield "the purger goes on", state._replace(purger=following, to_remove=left)
        for version in state.to_remove:
            task = tuple(each for each in state.task if each != version)
            rest = tuple(each for each in state.to_remove if each != version)
            yield f"version {version} is removed", state._replace(task=task, to_remove=rest)

    def _data_removals(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.to_remove:
            yield "the purger is done", state._replace(purger="done")
        for version in state.to_remove:
            data = tuple(each for each in state.data if each != version)
            rest = tuple(each for each in state.to_remove if each != version)
            yield f"data {version} is removed", state._replace(data=data, to_remove=rest)


def _replay(state: State) -> Iterator[tuple[str, State]]:
    current = state.task[-1] if state.task else 0
    if state.replayer == "idle":
        following = "writing" if current == ENDED else "refused"
        yield "the replayer reads the task", state._replace(replayer=following)
    elif state.replayer == "writing":
        if current != ENDED:
            yield "the replay is refused", state._replace(replayer="refused")
        else:
            yield "the task is replayed", state._replace(task=(*state.task, REPLAYED), replayer="told")


def _submit(state: State) -> Iterator[tuple[str, State]]:
    if state.submitter == "idle":
        yield "the submitter writes its data", state._replace(data=(*state.data, YOUNG), submitter="writing")
    elif state.submitter == "writing":
        if state.task:
            yield "the submitter finds a task", state._replace(submitter="found")
        else:
            yield "the submitter creates a task", state._replace(task=(CREATED,), submitter="told")


def problem(state: State) -> str | None:
    current = state.task[-1] if state.task else 0
    if current == OLDER:
        return "a state long past is current again"
    if current in (REPLAYED, CREATED) and not state.data:
        return "a task that waits has lost its input"
    if state.replayer == "told" and current != REPLAYED:
        return "a task that was replayed is gone"
    if state.submitter == "told" and current not in (CREATED, REPLAYED):
        return "a task that was submitted is gone"
    return None


def _is_over(state: State) -> bool:
    return (
        state.purger == "done"
        and state.replayer in ("told", "refused")
        and state.submitter in ("told", "found")
        and (state.task == () or state.task[-1] in (REPLAYED, CREATED, ENDED))
    )
