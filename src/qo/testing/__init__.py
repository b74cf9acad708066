"""The public test kit: a queue in memory with a stopped clock, faults, virtual time, and the store conformance suite.

    from qo.testing import MemoryQueue

    async with MemoryQueue() as queue:
        await queue.submit("charge", {"order": 7})
        queue.assert_enqueued("charge", {"order": 7})
        await queue.drain(app)

With pytest, the fixtures ``qo_queue``, ``qo_pipelines`` and ``qo_run`` need no import (``plugin``). Names are loaded
when they are first used: pytest imports this package for every project in an environment that has qo.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qo.store.faulty import Fault, FaultPlan, Faulty
    from qo.testing.draining import Drained, DrainFailed
    from qo.testing.memory_queue import MemoryQueue

_MODULES = {
    "DrainFailed": "qo.testing.draining",
    "Drained": "qo.testing.draining",
    "Fault": "qo.store.faulty",
    "FaultPlan": "qo.store.faulty",
    "Faulty": "qo.store.faulty",
    "MemoryQueue": "qo.testing.memory_queue",
}

__all__ = ["DrainFailed", "Drained", "Fault", "FaultPlan", "Faulty", "MemoryQueue"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'qo.testing' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
