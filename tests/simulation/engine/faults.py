"""What goes wrong in one run, and when.

Every fault has a name that stays its own when others are left out: the process and the number of its request, or the
number of a step. Whether it strikes was drawn for that name. So a run that fails can be run again with some of its
faults only, until none is left that could be spared.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from hashlib import blake2b


class Trace:
    """Everything that happened, in order, as one digest; and line by line for people."""

    def __init__(self, *, loud: bool = False) -> None:
        self._hash = blake2b(digest_size=16)
        self._loud = loud
        self.lines = 0

    def say(self, line: str) -> None:
        self._hash.update(f"{line}\n".encode())
        self.lines += 1
        if self._loud:
            print(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Faults:
    def __init__(self, seed: int, only: Collection[str] | None = None, *, loud: bool = False) -> None:
        """``only`` names those that may strike; None: all that the seed draws."""
        self.seed = seed
        self.trace = Trace(loud=loud)
        self.struck: dict[str, str] = {}  # By name, in order: what it was.
        self._only = None if only is None else frozenset(only)
        self._over = False

    def stream(self, name: str) -> random.Random:
        """Chance for one purpose. What others draw does not change what it draws."""
        return random.Random(f"{self.seed}/{name}")

    def strikes(self, name: str, what: str) -> bool:
        """Whether this fault, which was drawn, happens."""
        if self._over or (self._only is not None and name not in self._only):
            return False
        if name not in self.struck:
            self.struck[name] = what
            self.trace.say(f"! {name} {what}")
        return True

    def end(self) -> None:
        """From now on nothing goes wrong any more."""
        self._over = True
