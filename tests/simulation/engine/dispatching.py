"""How the tasks of one seed's queue reach its workers: in every second one, some have inboxes.

It draws from a stream of its own, so that whatever else a seed draws stays as it is without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from qo.core.discovery import IndexMode
from qo.core.dispatch import Dispatch, DispatchConfig, Routing
from simulation.engine.faults import Faults


@dataclass(frozen=True)
class Dispatching:
    faults: Faults
    config: DispatchConfig
    index_only: bool  # Nobody finds a task but through its hint.

    def draw_mode(self, worker: str) -> Dispatch:
        """Whether a worker has an inbox: most have, where tasks are put into any."""
        mixed = self.faults.stream(f"dispatch {worker}").random() < 0.2
        return Dispatch.SHARED if mixed else self.config.dispatch

    def index_mode(self, drawn: IndexMode) -> IndexMode:
        return IndexMode.INDEX_ONLY if self.index_only else drawn


def draw_dispatch(faults: Faults) -> Dispatching:
    rng = faults.stream("dispatch")
    dispatch = rng.choice(list(Dispatch))
    config = DispatchConfig(
        dispatch=dispatch,
        routing=rng.choice(list(Routing)),
        view_s=rng.choice([1.0, 5.0, 30.0]),
        offer_after_s=rng.choice([1.0, 10.0]),
    )
    return Dispatching(faults, config, dispatch is Dispatch.DIRECT and rng.random() < 0.5)
