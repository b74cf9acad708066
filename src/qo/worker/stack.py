"""The service stack: a handler wrapped in layers, the first outermost.

    load_shed > buffer > timeout > concurrency_limit > rate_limit > trace > log > catch > yours > the handler

A layer takes the next service and returns a service. It may act before and after, answer in its place, or raise:
``catch`` turns whatever a handler or a layer of yours raises into an outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import reduce
from typing import TYPE_CHECKING

from qo.worker.outcome import Outcome

if TYPE_CHECKING:
    from qo.worker.request import Request

Service = Callable[["Request"], Awaitable[Outcome]]
Layer = Callable[[Service], Service]


def stack(*layers: Layer) -> Layer:
    """Several layers as one."""

    def wrap(service: Service) -> Service:
        return reduce(lambda inner, layer: layer(inner), reversed(layers), service)

    return wrap
