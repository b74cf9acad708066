"""The settings of the queue itself: the table [queue], which says how new tasks reach workers."""

from __future__ import annotations

from dataclasses import dataclass

from qo.config import kinds
from qo.config.setting import setting
from qo.core.dispatch import Dispatch, DispatchConfig, Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    dispatch: Dispatch = setting(  # noqa: RUF009 - an immutable value, made once.
        Dispatch.SHARED,
        "QO_DISPATCH",
        kind=kinds.choice(Dispatch),
        help="How new tasks reach workers: every worker looks for them, or each is put into the inbox of one worker.",
    )
    routing: Routing = setting(  # noqa: RUF009 - an immutable value, made once.
        Routing.ROUND_ROBIN,
        "QO_DISPATCH_ROUTING",
        kind=kinds.choice(Routing),
        help="With direct dispatch, how the worker of a task is chosen among those that run its type.",
    )
    worker_view_s: float = setting(
        30.0,
        "QO_DISPATCH_WORKER_VIEW_S",
        kind=kinds.number(1, 300),
        help="Seconds for which whoever submits uses a list of the live workers, before it reads another.",
    )
    offer_after_s: float = setting(
        10.0,
        "QO_DISPATCH_OFFER_AFTER_S",
        kind=kinds.number(1, 3600),
        help="Seconds after which a task that waits in an inbox is offered to all workers.",
    )

    @property
    def config(self) -> DispatchConfig:
        return DispatchConfig(
            dispatch=self.dispatch,
            routing=self.routing,
            view_s=self.worker_view_s,
            offer_after_s=self.offer_after_s,
        )
