"""Conditional writes that survive lost replies.

A 412 may be caused by our own earlier write, and a missing reply may hide a success. So every write can be recognised
(by ``ours``, from the body), and after a failure the object is read before anything is concluded. The write is sent
again only if the object is provably unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from qo.ambient import SYSTEM, Ambient
from qo.errors import ConcurrentWrite, PreconditionFailed, Unavailable
from qo.store.port import ObjectStore, PutResult, Stored

SENDS_MAX = 6
REST_FIRST_S = 0.05


class Moved:
    """The write did not happen: ``current`` is there instead, or nothing if it is None."""

    __slots__ = ("current",)

    def __init__(self, current: Stored | None) -> None:
        self.current = current


async def write(
    store: ObjectStore,
    key: str,
    body: bytes,
    *,
    if_match: str | None,
    ours: Callable[[bytes], bool],
    ambient: Ambient = SYSTEM,
) -> PutResult | Moved:
    """Create the object (``if_match`` None) or replace the one with that ETag; else return what is there instead.

    Raises Unavailable if the store gave no usable reply SENDS_MAX times: whether the write happened is then unknown,
    and calling again with the same body is safe.
    """
    rest_s = REST_FIRST_S
    for send in range(1, SENDS_MAX + 1):
        try:
            return await store.put(key, body, if_match=if_match, if_absent=if_match is None)
        except PreconditionFailed:
            current = await store.get(key)
            return _own_write(current, ours) or Moved(current)
        except (ConcurrentWrite, Unavailable):
            if send == SENDS_MAX:
                raise
            await asyncio.sleep(rest_s * (0.5 + ambient.unit()))
            rest_s *= 2
            current = await store.get(key)
            if (mine := _own_write(current, ours)) is not None:
                return mine
            if (current.etag if current else None) != if_match:
                return Moved(current)
    raise AssertionError("unreachable")


def _own_write(current: Stored | None, ours: Callable[[bytes], bool]) -> PutResult | None:
    if current is not None and ours(current.body):
        return PutResult(current.etag, current.version)
    return None
