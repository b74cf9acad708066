"""The dependencies of the routes, passed to the app when it is built: there are no globals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qo.asgi.traffic import Traffic
from qo.config.settings import Settings
from qo.dispatcher.auth.table_credentials import TableCredentials
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.views.table_documents import TableDocuments
from qo.pipeline.registry import DEFAULT, Registry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from qo.dispatcher.auth.local_tokens import LocalTokens
    from qo.dispatcher.auth.signing_keys import KeyRing
    from qo.queue.queue import Queue


def _do_nothing() -> None:
    """Nudge no loop: they look for work by themselves, a little later."""


def _leave_to_loops(_: Tx) -> Callable[[], None]:
    return _do_nothing


def _expect_nothing(_: Tx) -> None:
    """Prepare for no fast path: what is stored is left to the loops."""


def _no_metrics(_: Tx) -> Iterable[Metric]:
    return ()


@dataclass(frozen=True, slots=True)
class Context:
    state: State
    settings: Settings
    keyring: KeyRing
    tokens: LocalTokens  # Those outside the state: the workers', and an admin's of this machine.
    registry: Registry = DEFAULT
    nudge: Callable[[], None] = field(default=_do_nothing)  # Tells the loops that there is work. From any thread.
    # Called in the transaction that stores events, to release what follows. Its result is called after the commit.
    fast_path: Callable[[Tx], Callable[[], None]] = field(default=_leave_to_loops)
    # Called first in such a transaction, if it ends with ``fast_path``.
    prepare: Callable[[Tx], None] = field(default=_expect_nothing)
    deployed: Callable[[], None] = field(default=_do_nothing)  # As nudge, after a change of the topology.
    traffic: Traffic = field(default_factory=Traffic)
    troubles: Callable[[], Sequence[str]] = field(
        default=list[str]
    )  # Why the process should be restarted; empty if it need not.
    families: Callable[[Tx], Iterable[Metric]] = field(
        default=_no_metrics
    )  # Metrics of other parts of the process.
    table_documents: TableDocuments = field(default_factory=TableDocuments)
    table_credentials: TableCredentials = field(default_factory=TableCredentials)
    queue: Queue | None = None  # Whose API is served, too.
    on_stop: list[Callable[[], Awaitable[None]]] = field(
        default_factory=list["Callable[[], Awaitable[None]]"]
    )  # Called when the listeners stop, so that requests which wait are answered.
