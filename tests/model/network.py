"""One object in a store, several who write it on condition, and a network between them.

A write is sent, then applied, then answered, and between each of these anything else may happen. It may also be
refused, or applied without an answer, or be answered as if it had been somebody else's; its sender may give up on it
and it may be applied all the same, much later; its sender may die. What a sender does when it knows nothing is what
``qo.store.register`` does: it looks, knows its own write by its token, and writes again only if nothing has moved.

Reading, deciding and sending are one step: if the object moved in between, the write would be refused, as it is when
the object moves after it was sent.

All times are relative to now, so that the same situation is the same state whenever it comes up. What makes no
difference any more is forgotten, for the same reason: which names things bear, what is in a write that will be refused,
which of two clients with the same clock is which. And where the order of two steps makes none, one order is tried:

- Who is not stopped hears an answer as it is given. Whoever dies or is stopped in between might as well have died with
  the write on its way, or have been stopped before it arrived.
- Who is refused reads at once what is there. If that moves before the next write, that one is refused as well.
- A late write need not be lost: it may as well come never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# Further back, instants make no difference any more: no clock here lags behind the store's.
OLD = 0
SENT_OLD = -3
DELIVERED_BY = -2  # A write that takes longer than this many ticks is one that its sender has given up.


class Object(NamedTuple):
    """What lies in the store. ``token`` names the write that put it there, and is its ETag."""

    token: int
    value: tuple[Any, ...]


class Put(NamedTuple):
    written: Object
    if_match: int


GONE = Object(0, ())  # Something that was replaced. What it was makes no difference.
STALE = Put(GONE, 0)  # A write that will be refused. What it would have written makes none.


class Client(NamedTuple):
    phase: str = "idle"
    seen: Object | None = None
    want: tuple[Any, ...] | None = None  # What it wants to do, the token of the write, and another name.
    put: Put | None = None
    sent_at: int = 0
    until: int = OLD  # What it holds, it believes to hold until then.
    paused: bool = False
    excused: bool = False  # It was paused while it held something.


class State(NamedTuple):
    stored: Object
    clients: tuple[Client, ...]
    ghosts: tuple[Put, ...] = ()  # Writes whose senders wait for them no longer.
    faults: int = 0  # How many may still happen.
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a model adds: what each does by itself, and what an answer means to it."""

    acts: Callable[[State, int], Iterator[tuple[str, State]]]
    won: Callable[[State, int, Object], State]  # The write of this client has happened, and it knows.
    moved: Callable[[State, int, Object], State]  # It has not: this is what is there.
    shift: Callable[[tuple[Any, ...]], tuple[Any, ...]]  # A stored value, one tick later.
    urgent: Callable[[Client], bool]  # Whether it acts before any time passes, unless it is paused.
    judge: Callable[[Object, Object], str]  # What is wrong with a write that follows another.
    idles: Callable[[Client], bool]  # Whether a client that will be refused may as well not have asked.
    alike: Sequence[int]  # For each client, a number that is the same for those that are interchangeable.
    conditional: bool = True
    named: tuple[int, ...] = ()  # Which fields of a value are names, as tokens are.


def changed(state: State, n: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:n], client, *state.clients[n + 1 :]))


def send(state: State, n: int, written: Object, if_match: int) -> State:
    client = state.clients[n]._replace(phase="sent", seen=None, put=Put(written, if_match), sent_at=0)
    return changed(state, n, client)


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    for label, after in _steps(state, rules):
        yield label, _named(_sorted(_forgotten(after, rules), rules.alike), rules.named)


def _steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    for n, client in enumerate(state.clients):
        yield from _network(state, n, client, rules)
        if not client.paused:
            yield from _heard(state, n, client, rules)
            yield from rules.acts(state, n)
        else:
            yield f"{n} goes on", changed(state, n, client._replace(paused=False))
        yield from _mishaps(state, n, client)
    for place, ghost in enumerate(state.ghosts):
        left = state._replace(ghosts=state.ghosts[:place] + state.ghosts[place + 1 :])
        yield "a late write comes", _applied(left, ghost, rules)[0]
    if not any(_presses(client, rules) for client in state.clients):
        yield "time passes", _ticked(state, rules)


def _presses(client: Client, rules: Rules) -> bool:
    """Whether something happens before any time passes: who is not stopped hears an answer when it comes."""
    if client.phase == "sent":
        return client.sent_at <= DELIVERED_BY
    return not client.paused and (client.phase in ("answered", "refused", "unknown") or rules.urgent(client))


def _applied(state: State, put: Put, rules: Rules) -> tuple[State, bool]:
    if rules.conditional and put.if_match != state.stored.token:
        return state, False
    wrong = rules.judge(state.stored, put.written)
    return state._replace(stored=put.written, broken=state.broken or wrong), True


def _network(state: State, n: int, client: Client, rules: Rules) -> Iterator[tuple[str, State]]:
    if client.phase != "sent" or client.put is None:
        return
    after, done = _applied(state, client.put, rules)
    heard = changed(after, n, client._replace(phase="answered" if done else "refused"))
    if not client.paused:
        heard = rules.won(heard, n, client.put.written) if done else _looked(heard, n, client.put, rules)
    yield f"{n}'s write {'happens' if done else 'is too late'}", heard
    if state.faults:
        worse = after._replace(faults=state.faults - 1)
        yield f"the answer to {n} is lost", changed(worse, n, client._replace(phase="unknown"))
        if done:
            yield f"{n}'s write is refused by itself", changed(worse, n, client._replace(phase="refused"))
        unsent = state._replace(faults=state.faults - 1)
        yield f"503 to {n}", changed(unsent, n, client._replace(phase="unknown"))
        late = unsent._replace(ghosts=(*state.ghosts, client.put))
        yield f"{n} waits no longer", changed(late, n, client._replace(phase="unknown"))


def _heard(state: State, n: int, client: Client, rules: Rules) -> Iterator[tuple[str, State]]:
    put, there = client.put, state.stored
    if put is None:
        return
    if client.phase == "answered":
        yield f"{n} hears that it has written", rules.won(state, n, put.written)
    if client.phase == "unknown" and there.token == put.if_match:
        yield f"{n} writes again", changed(state, n, client._replace(phase="sent"))
    elif client.phase in ("refused", "unknown"):
        yield f"{n} looks what is there", _looked(state, n, put, rules)


def _looked(state: State, n: int, put: Put, rules: Rules) -> State:
    """Who was refused may find its own write there."""
    seen = rules.won if state.stored.token == put.written.token else rules.moved
    return seen(state, n, state.stored)


def _mishaps(state: State, n: int, client: Client) -> Iterator[tuple[str, State]]:
    if not state.faults:
        return
    left = state._replace(faults=state.faults - 1)
    if client.phase != "idle":
        in_flight = (client.put,) if client.phase == "sent" and client.put is not None else ()
        yield f"{n} dies", changed(left._replace(ghosts=state.ghosts + in_flight), n, Client())
    if not client.paused and client.phase != "idle":
        yield f"{n} is stopped", changed(left, n, client._replace(paused=True, excused=True))


def _ticked(state: State, rules: Rules) -> State:
    def later(there: Object) -> Object:
        return there if there is GONE else Object(there.token, rules.shift(there.value))

    def sent(put: Put) -> Put:
        return put if put is STALE else Put(later(put.written), put.if_match)

    clients = tuple(
        client._replace(
            seen=client.seen and later(client.seen),
            put=client.put and sent(client.put),
            sent_at=max(SENT_OLD, client.sent_at - 1) if client.put not in (None, STALE) else 0,
            until=max(OLD, client.until - 1),
        )
        for client in state.clients
    )
    return state._replace(
        stored=later(state.stored), clients=clients, ghosts=tuple(sent(ghost) for ghost in state.ghosts)
    )


def _forgotten(state: State, rules: Rules) -> State:
    """Without what makes no difference any more. A token is never written twice: what is stale stays so."""
    if not rules.conditional:
        return state
    token = state.stored.token
    clients = tuple(_forgetful(client, token, rules) for client in state.clients)
    ghosts = tuple(sorted({ghost for ghost in state.ghosts if ghost.if_match == token}))
    return state._replace(clients=clients, ghosts=ghosts)


def _forgetful(client: Client, token: int, rules: Rules) -> Client:
    if client.seen is not None and client.seen.token != token:
        client = client._replace(seen=GONE)
    if (
        client.put is None
        or client.phase == "answered"
        or token in (client.put.if_match, client.put.written.token)
    ):
        return client
    return Client() if rules.idles(client) else client._replace(put=STALE, sent_at=0)


def _sorted(state: State, alike: Sequence[int]) -> State:
    """With interchangeable clients in one order, as far as that can be told without their names."""
    if len(set(alike)) == len(alike):
        return state

    def rank(n: int) -> tuple[Any, ...]:
        client = state.clients[n]
        put = client.put and (client.put is STALE, client.put.written.value, client.put.if_match == token)
        return alike[n], client.phase, client.until, client.sent_at, client.paused, client.excused, str(put)

    token = state.stored.token
    order = sorted(range(len(alike)), key=rank)
    return state._replace(clients=tuple(state.clients[n] for n in order))


def fresh(state: State, named: tuple[int, ...] = ()) -> int:
    """A name that nothing in this state bears."""
    return 1 + max(_names(state, named))


def _names(state: State, named: tuple[int, ...]) -> Iterator[int]:
    """In the order in which they are met."""

    def of(there: Object | None) -> Iterator[int]:
        if there is not None and there is not GONE:
            yield there.token
            yield from (there.value[place] for place in named)

    yield 0  # Is no name.
    yield from of(state.stored)
    for client in state.clients:
        yield from of(client.seen)
        yield from client.want[1:3] if client.want is not None else ()
        if client.put is not None:
            yield from of(client.put.written)
            yield client.put.if_match
    for ghost in state.ghosts:
        yield from of(ghost.written)
        yield ghost.if_match


def _named(state: State, named: tuple[int, ...]) -> State:
    """With names by where they occur: which they are makes no difference, only which are the same."""
    names: dict[int, int] = {}
    for name in _names(state, named):
        names.setdefault(name, len(names))
    if all(old == new for old, new in names.items()):
        return state

    def of(there: Object) -> Object:
        if there is GONE:
            return there
        value = tuple(names[each] if place in named else each for place, each in enumerate(there.value))
        return Object(names[there.token], value)

    def sent(put: Put) -> Put:
        return put if put is STALE else Put(of(put.written), names[put.if_match])

    clients = tuple(
        client._replace(
            seen=None if client.seen is None else of(client.seen),
            put=None if client.put is None else sent(client.put),
            want=client.want and (client.want[0], *(names[each] for each in client.want[1:3]), *client.want[3:]),
        )
        for client in state.clients
    )
    ghosts = tuple(sent(ghost) for ghost in state.ghosts)
    return State(of(state.stored), clients, ghosts, state.faults, state.broken)
