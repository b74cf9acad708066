"""The only doors to chance, ids and waiting. Everything else takes them as arguments.

A simulation replaces them with seeded ones, so that the same seed draws the same run again. There is no
wall clock here on purpose: what time it is, only the store may say (``ObjectStore.now``).
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Ambient:
    """Where chance and ids come from. ``Ambient.seeded(n)`` gives a reproducible one."""

    rng: random.Random = field(default_factory=random.SystemRandom)
    monotonic: Callable[[], float] = time.monotonic

    @classmethod
    def seeded(cls, seed: int, monotonic: Callable[[], float] = time.monotonic) -> Ambient:
        return cls(rng=random.Random(seed), monotonic=monotonic)

    def unit(self) -> float:
        """A number in [0, 1)."""
        return self.rng.random()

    def task_id(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def token(self) -> str:
        """A name for one write, long enough that no two writers ever draw the same."""
        return f"{self.rng.getrandbits(96):024x}"


SYSTEM = Ambient(rng=random.Random())  # Drawing from the operating system each time costs more than a request.

if hasattr(os, "register_at_fork"):
    # A child that inherited the generator's state would draw its parent's ids over again.
    os.register_at_fork(after_in_child=SYSTEM.rng.seed)
