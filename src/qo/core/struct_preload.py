"""Prepare msgspec Structs for decoding on several threads.

msgspec inspects the fields of a Struct when one is first decoded. If two threads do so at the same time, the process
can crash: the second uses what the first has not filled in yet. So every Struct is inspected when its module is
imported, which only one thread does.
"""

from __future__ import annotations

import msgspec


def preload(*kinds: type[msgspec.Struct]) -> None:
    """Inspect these Structs and their fields now, so that several threads may decode them at once."""
    for kind in kinds:
        msgspec.json.Decoder(kind)
