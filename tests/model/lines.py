"""The protocol of an ordered group, as ``queue.groups`` and ``queue.followers`` follow it, over the real rules.

Tasks of one group get in line, take their turns and end; one may be cancelled while it waits, and replayed. Clients are
submitters, workers and monitors: each does one thing at a time, request by request, and may die after any of them. What
changes a task is applied to the task as it is then: that this is safe, the model of claims shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

from model.explorer import Explored, explore
from qo.core.commands import AddDependent, Cancel, Command, Meet, Rejected, Replay, TakeTurn
from qo.core.lifecycle import decide
from qo.core.task import Flow, Status, Task
from qo.core.waits import (
    GROUP,
    Verdict,
    assess,
    conditions_about,
    flow_of,
    is_in_line,
    is_turn_over,
    target_of,
    turn_condition,
    wants_place,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Kept(NamedTuple):
    """What of a task makes a difference."""

    status: str = Status.PENDING
    turn: int = 0
    waits_for: tuple[str, ...] = (GROUP,)
    dependents: tuple[str, ...] = ()


class End(NamedTuple):
    """The last in line, and how often that was written."""

    task: str = ""
    turn: int = 0
    after: str | None = None
    writes: int = 0


class Client(NamedTuple):
    phase: str = "idle"
    task: str = ""  # The one it is about.
    end: End = End()  # As it was read.
    value: str | None = None  # The turn to wait for, or the condition that it looks at.
    told: Kept | None = None  # The ended task that dependents are told of, …
    to_tell: tuple[str, ...] = ()  # … and those that are left to tell.


class State(NamedTuple):
    tasks: tuple[Kept, ...]
    clients: tuple[Client, ...]
    end: End = End()
    joined: tuple[tuple[str, int], ...] = ()  # Turns, in the order in which they got in line.
    deaths: int = 0
    cancels: int = 0
    replays: int = 0

    def task(self, name: str) -> Kept:
        return self.tasks[ord(name) - ord("a")]


@dataclass(frozen=True, slots=True)
class Config:
    tasks: int = 2
    clients: int = 2
    deaths: int = 1
    cancels: int = 1
    replays: int = 1
    places_last: bool = True  # Whether the last in line is told its place before it is replaced.
    end_first: bool = True  # Whether the end of the line is read before the task.
    assess: Callable[[Task, str, Task | None], Verdict] = assess


@cache
def _task(name: str, kept: Kept) -> Task:
    flow = Flow(group="g", turn=kept.turn, waits_for=kept.waits_for, dependents=kept.dependents)
    times = {"available_at": NOW, "created_at": NOW, "updated_at": NOW}
    return Task(id=name, task_type="t", shard="0", status=Status(kept.status), token="t", flow=flow, **times)


def _kept(task: Task) -> Kept:
    flow = flow_of(task)
    return Kept(str(task.status), flow.turn, flow.waits_for, tuple(sorted(flow.dependents)))


def _apply(state: State, name: str, command: Command) -> State | None:
    """The state with the command applied; None: it is rejected."""
    decision = decide(_task(name, state.task(name)), command, now=NOW)
    if isinstance(decision, Rejected):
        return None
    tasks = (_kept(decision) if chr(ord("a") + n) == name else each for n, each in enumerate(state.tasks))
    return state._replace(tasks=tuple(tasks))


def _is_ready(kept: Kept) -> bool:
    return kept.status == Status.PENDING and not kept.waits_for


class Lines:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._names = [chr(ord("a") + n) for n in range(config.tasks)]

    def explore(self) -> Explored[State]:
        start = State((Kept(),) * self._config.tasks, (Client(),) * self._config.clients)
        return explore(start, self._steps, problem, _is_over)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for n, client in enumerate(state.clients):
            if client.phase == "idle":
                if client not in state.clients[:n]:  # Who is idle is as good as any other.
                    yield from ((f"{n} {label}", after) for label, after in self._begin(state, n))
                continue
            yield f"{n} {client.phase} {client.task}", self._step(state, n, client)
            if state.deaths < self._config.deaths:
                yield f"{n} dies", _with(state, n, Client())._replace(deaths=state.deaths + 1)
        for name in self._names:
            yield from self._operate(state, name)

    def _operate(self, state: State, name: str) -> Iterator[tuple[str, State]]:
        kept, config = state.task(name), self._config
        if kept.waits_for and kept.status == Status.PENDING and state.cancels < config.cancels:
            moved = _apply(state, name, Cancel("x"))
            assert moved is not None
            yield f"{name} is cancelled", moved._replace(cancels=state.cancels + 1)
        if kept.status == Status.CANCELLED and state.replays < config.replays:
            moved = _apply(state, name, Replay("x"))
            assert moved is not None
            yield f"{name} is replayed", moved._replace(replays=state.replays + 1)

    def _begin(self, state: State, n: int) -> Iterator[tuple[str, State]]:
        """A submitter or a monitor settles a task; a worker ends one that is ready."""
        for name in self._names:
            kept = state.task(name)
            awaited = any(conditions_about(_task(each, state.task(each)), [name]) for each in self._names)
            in_line = is_in_line(flow_of(_task(name, kept)))
            if (kept.status == Status.PENDING and kept.waits_for) or (in_line and awaited):
                yield f"settles {name}", _with(state, n, Client(self._first_phase(kept), name))
            elif _is_ready(kept):
                ended = kept._replace(status=str(Status.COMPLETED))
                tasks = tuple(ended if each == name else state.task(each) for each in self._names)
                yield f"ends {name}", self._telling(state._replace(tasks=tasks), n, name)

    def _first_phase(self, kept: Kept) -> str:
        if not wants_place(flow_of(_task("a", kept))):
            return "looks ahead of"
        return "reads the end for" if self._config.end_first else "reads"

    def _step(self, state: State, n: int, client: Client) -> State:
        steps: dict[str, Callable[[State, int, Client], State]] = {
            "reads the end for": self._read_end,
            "reads": self._read,
            "chooses for": self._choose,
            "places the last before": self._place,
            "places": self._place,
            "tells its place the last before": self._tell_place,
            "tells its place": self._tell_place,
            "swaps for": self._swap,
            "looks ahead of": self._look_ahead,
            "registers": self._register,
            "meets the condition of": self._meet,
            "tells": self._tell_next,
        }
        return steps[client.phase](state, n, client)

    def _read_end(self, state: State, n: int, client: Client) -> State:
        following = "reads" if self._config.end_first else "chooses for"
        return _with(state, n, client._replace(end=state.end, phase=following))

    def _read(self, state: State, n: int, client: Client) -> State:
        if not wants_place(flow_of(_task(client.task, state.task(client.task)))):
            return _with(state, n, client._replace(phase="looks ahead of"))
        following = "chooses for" if self._config.end_first else "reads the end for"
        return _with(state, n, client._replace(phase=following))

    def _register(self, state: State, n: int, client: Client) -> State:
        """Have the task before it know it; rejected if that one has ended. Either way, look again."""
        moved = _apply(state, target_of(client.value or ""), AddDependent("x", client.task))
        return _with(moved or state, n, client._replace(phase="looks ahead of", value=None))

    def _choose(self, state: State, n: int, client: Client) -> State:
        end, turn = client.end, state.task(client.task).turn
        if (end.task, end.turn) == (client.task, turn):
            return _with(state, n, client._replace(phase="places"))
        last = self._config.places_last and end.task != ""
        return _with(state, n, client._replace(phase="places the last before" if last else "swaps for"))

    def _place(self, state: State, n: int, client: Client) -> State:
        """Look whether the turn before is over. ``client.end`` says who is placed."""
        name, after = client.end.task, client.end.after
        if after is not None and self._assess(state, name, after) is Verdict.MET:
            after = None
        phase = client.phase.replace("places", "tells its place")
        return _with(state, n, client._replace(phase=phase, value=after))

    def _tell_place(self, state: State, n: int, client: Client) -> State:
        moved = _apply(state, client.end.task, TakeTurn("x", client.end.turn, client.value)) or state
        own = client.phase == "tells its place"
        return _with(moved, n, client._replace(phase="looks ahead of" if own else "swaps for", value=None))

    def _swap(self, state: State, n: int, client: Client) -> State:
        if state.end != client.end:
            return _with(state, n, Client("reads the end for" if self._config.end_first else "reads", client.task))
        turn = state.task(client.task).turn
        after = turn_condition(client.end.task, client.end.turn) if client.end.task else None
        end = End(client.task, turn, after, state.end.writes + 1)
        joined = (*state.joined, (client.task, turn))
        return _with(state._replace(end=end, joined=joined), n, client._replace(phase="places", end=end))

    def _look_ahead(self, state: State, n: int, client: Client) -> State:
        conditions = [each for each in state.task(client.task).waits_for if each != GROUP]
        if not conditions:
            return _with(state, n, Client())
        verdict = self._assess(state, client.task, conditions[0])
        if verdict is Verdict.UNREGISTERED:
            return _with(state, n, client._replace(phase="registers", value=conditions[0], end=End()))
        if verdict is Verdict.MET:
            return _with(state, n, client._replace(phase="meets the condition of", value=conditions[0], end=End()))
        return _with(state, n, Client())

    def _meet(self, state: State, n: int, client: Client) -> State:
        moved = _apply(state, client.task, Meet("x", (client.value or "",)))
        assert moved is not None
        if moved.task(client.task).status == Status.PENDING or moved == state:
            return _with(moved, n, Client())
        return self._telling(moved, n, client.task)  # It had ended in line, and now its turn is over.

    def _telling(self, state: State, n: int, name: str) -> State:
        kept = state.task(name)
        if not kept.dependents:
            return _with(state, n, Client())
        return _with(state, n, Client("tells", name, told=kept, to_tell=kept.dependents))

    def _tell_next(self, state: State, n: int, client: Client) -> State:
        """Tell one dependent that a task has ended; if that ends its own turn, tell those who wait for it."""
        assert client.told is not None
        name, *rest = client.to_tell
        dependent, ended = _task(name, state.task(name)), _task(client.task, client.told)
        met = tuple(
            each
            for each in conditions_about(dependent, [client.task])
            if self._config.assess(dependent, each, ended) is Verdict.MET
        )
        moved = (_apply(state, name, Meet("x", met)) or state) if met else state
        after = client._replace(to_tell=tuple(rest)) if rest else Client()
        if met and dependent.ended and not rest:
            return self._telling(moved, n, name)
        return _with(moved, n, after)

    def _assess(self, state: State, name: str, condition: str) -> Verdict:
        target = target_of(condition)
        return self._config.assess(_task(name, state.task(name)), condition, _task(target, state.task(target)))


def _with(state: State, n: int, client: Client) -> State:
    clients = [*state.clients[:n], client, *state.clients[n + 1 :]]
    return state._replace(clients=tuple(sorted(clients, key=repr)))


def problem(state: State) -> str | None:
    tasks = {name: state.task(name) for name in map(chr, range(ord("a"), ord("a") + len(state.tasks)))}
    ready = [name for name, kept in tasks.items() if _is_ready(kept)]
    if len(ready) > 1:
        return f"{' and '.join(ready)} may run at a time"
    for name in ready:
        place = (name, tasks[name].turn)
        if place not in state.joined:
            return f"{name} may run without having been in line"
        for other, turn in state.joined[: state.joined.index(place)]:
            if not is_turn_over(_task(other, tasks[other]), turn):
                return f"{name} overtakes {other}"
    return None


def _is_over(state: State) -> bool:
    return all(kept.status not in (Status.PENDING,) for kept in state.tasks) and all(
        client.phase == "idle" for client in state.clients
    )
