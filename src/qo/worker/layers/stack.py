"""The service stack: a handler wrapped in layers, the first outermost.

    load_shed > buffer > timeout > concurrency_limit > rate_limit > trace > log > catch > yours > the handler

A layer takes the next service and returns a service. It may act before and after, answer in its place, or raise:
``catch`` turns whatever a handler or a layer of yours raises into an outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from qo.errors import UsageError
from qo.worker.loop.outcome import Outcome

if TYPE_CHECKING:
    from qo.worker.api.request import Request

Service = Callable[["Request"], Awaitable[Outcome]]
Layer = Callable[[Service], Service]


def stack(*layers: Layer) -> Layer:
    """Several layers as one. Raises UsageError when one of them gives something that cannot be called."""

    def wrap(service: Service) -> Service:
        for layer in reversed(layers):
            service = layer(service)
            if not callable(service):  # As when it does not return: otherwise each task would find that out.
                name = getattr(layer, "__qualname__", layer)
                raise UsageError(f"the layer {name} gave {service!r} instead of a service: return one")
        return service

    return wrap
