"""What the routes work with, given to the app when it is made: there are no globals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qo.config.settings import Settings
from qo.dispatcher.http.traffic import Traffic
from qo.dispatcher.state.database import State, Tx
from qo.pipeline.registry import DEFAULT, Registry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from qo.dispatcher.auth.keys import KeyRing
    from qo.dispatcher.auth.local_tokens import LocalTokens


def _nobody() -> None:
    """There is nobody to nudge: the loops look by themselves, a little later."""


def _left(_: Tx) -> Callable[[], None]:
    return _nobody


def _none(_: Tx) -> Iterable[Metric]:
    return ()


@dataclass(frozen=True, slots=True)
class Context:
    state: State
    settings: Settings
    keyring: KeyRing
    tokens: LocalTokens  # Those that are not in the state: the workers', and an admin's of this machine.
    registry: Registry = DEFAULT
    nudge: Callable[[], None] = field(default=_nobody)  # Says that there is something to do. From any thread.
    # Called in the transaction in which a task ends: goes on from there. What it returns is called after it.
    onward: Callable[[Tx], Callable[[], None]] = field(default=_left)
    deployed: Callable[[], None] = field(default=_nobody)  # The same, and that the topology is another one.
    traffic: Traffic = field(default_factory=Traffic)
    troubles: Callable[[], Sequence[str]] = field(default=list[str])  # Why the process should be replaced, if so.
    families: Callable[[Tx], Iterable[Metric]] = field(default=_none)  # Metrics of whoever else is in the process.
