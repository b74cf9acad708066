"""Structs that any thread may read.

msgspec looks at the fields of a Struct when one is first read. Two threads that do so at the same time can end the
process: the second finds what the first has not filled in yet. So every Struct that is read is looked at when its
module is loaded, which one thread does.
"""

from __future__ import annotations

import msgspec


def preload(*kinds: type[msgspec.Struct]) -> None:
    """From now on these, and those within them, may be read by several threads at once."""
    for kind in kinds:
        msgspec.json.Decoder(kind)
