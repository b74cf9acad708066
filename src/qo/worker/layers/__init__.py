"""The built-in layers, and the order in which they wrap every handler. See ``qo.worker.layers.stack``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qo.queue.options import DELAY_S_MAX, check_number
from qo.worker.api.handler import Rate
from qo.worker.layers.admission import buffer, load_shed
from qo.worker.layers.catch import catch
from qo.worker.layers.limits import ConcurrencyLimit, RateLimit, concurrency_limit, rate_limit
from qo.worker.layers.observe import log, trace
from qo.worker.layers.stack import Layer
from qo.worker.layers.timeout import timeout

__all__ = [
    "ConcurrencyLimit",
    "RateLimit",
    "ServiceOptions",
    "buffer",
    "catch",
    "concurrency_limit",
    "default_layers",
    "load_shed",
    "log",
    "make_limits",
    "rate_limit",
    "timeout",
    "trace",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    load_shed: bool = True
    buffer: int | None = 128  # None: no task waits for a permit; without one it is given back.
    timeout_s: float | None = 300.0  # Of tasks without a timeout of their own or their handler's; None: no limit.
    concurrency_limit: int | None = None  # Of all task types together, like rate_limit.
    rate_limit: Rate | None = None

    def __post_init__(self) -> None:
        check_number("buffer", self.buffer, 1, 1_000_000)
        check_number("timeout_s", self.timeout_s, 0.001, DELAY_S_MAX)
        check_number("concurrency_limit", self.concurrency_limit, 1, 1_000_000)


def make_limits(concurrency: int | None, rate: Rate | None) -> tuple[ConcurrencyLimit | RateLimit, ...]:
    """Make the limits that are set. Services share the limits that they are made with."""
    limits: list[ConcurrencyLimit | RateLimit] = []
    if concurrency is not None:
        limits.append(concurrency_limit(concurrency))
    if rate is not None:
        limits.append(rate_limit(rate))
    return tuple(limits)


def default_layers(options: ServiceOptions, limits: Sequence[Layer] | None = None) -> tuple[Layer, ...]:
    """Return the layers that wrap every handler, the first outermost.

    ``limits`` replace those of the options: a worker shares them between all its services.
    """
    if limits is None:
        limits = make_limits(options.concurrency_limit, options.rate_limit)
    shed = (load_shed(),) if options.load_shed else ()
    buffers = (buffer(options.buffer),) if options.buffer is not None else ()
    return (*shed, *buffers, timeout(), *limits, trace(), log(), catch())
