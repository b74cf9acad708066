"""The service stack: a handler wrapped in layers, the first outermost.

    load_shed > buffer > timeout > concurrency_limit > rate_limit > trace > log > catch > yours > the handler

A layer takes the next service and returns a service. It may act before and after it, return an outcome in its place, or
raise: ``catch`` turns the exceptions of handlers and of your layers into outcomes.
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
    """Combine several layers into one. Raises UsageError if a layer returns something that cannot be called."""

    def wrap(service: Service) -> Service:
        for layer in reversed(layers):
            service = layer(service)
            if not callable(service):  # A missing return, say. Otherwise every task would fail.
                name = getattr(layer, "__qualname__", layer)
                raise UsageError(f"the layer {name} gave {service!r} instead of a service: return one")
        return service

    return wrap
