"""Limits in the bucket: one object for each, from which workers lease their shares by conditional write."""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from qo.core import keys, wire
from qo.core.limit_shares import Grant, Limit, LimitRegister, Wish, grant, is_settled
from qo.errors import Contended, CorruptRecord
from qo.queue.listing import pages
from qo.queue.queue import Queue
from qo.store import register

log = logging.getLogger(__name__)

TRIES_MAX = 20
REST_FIRST_S, REST_MAX_S = 0.02, 0.5


async def ask(queue: Queue, limit: Limit, wish: Wish, *, ttl_s: float) -> Grant:
    """Change the share of a worker, and return what it got. Raises Contended when others won every time."""
    key, rest_s = keys.limit(limit.name), REST_FIRST_S
    for _ in range(TRIES_MAX):
        current, etag = await read(queue, limit.name)
        now = await queue.store.now()
        after, granted = grant(current, limit, wish, now=now, ttl_s=ttl_s)
        if is_settled(current, after, wish.worker_id, now=now, ttl_s=ttl_s):
            own = current.shares.get(wish.worker_id)  # Not written again: it lasts no longer than before.
            return granted if own is None else granted._replace(lasts_s=(own.until - now).total_seconds())
        token = queue.ambient.token()

        def ours(body: bytes, token: str = token) -> bool:
            return wire.decode(LimitRegister, body, key).token == token

        wrote = await register.write(
            queue.store,
            key,
            wire.encode(replace(after, token=token)),
            if_match=etag,
            ours=ours,
            ambient=queue.ambient,
        )
        if not isinstance(wrote, register.Moved):
            return granted
        await asyncio.sleep(rest_s * (0.5 + queue.ambient.unit()))
        rest_s = min(rest_s * 2, REST_MAX_S)
    raise Contended(f"other workers change their share of the limit {limit.name!r} all the time")


async def read(queue: Queue, name: str) -> tuple[LimitRegister, str | None]:
    """Return the register of a limit, and its ETag; an empty one if there is none yet."""
    key = keys.limit(name)
    stored = await queue.store.get(key)
    if stored is None:
        return LimitRegister(name=name), None
    shares = wire.decode(LimitRegister, stored.body, key)
    if shares.name != name:
        raise CorruptRecord(f"{key} is of the limit {shares.name!r}, not of {name!r}")
    return shares, stored.etag


async def read_all(queue: Queue) -> list[LimitRegister]:
    """Return the register of every limit that a worker has ever asked for a share of. Unreadable ones are logged."""
    listed = [entry.key async for entries in pages(queue.store, keys.LIMITS) for entry in entries]
    registers: list[LimitRegister] = []
    for key in listed:
        try:
            if (stored := await queue.store.get(key)) is not None:
                registers.append(wire.decode(LimitRegister, stored.body, key))
        except CorruptRecord as error:
            log.warning("limit left out: %s", error)
    return sorted(registers, key=lambda each: each.name)
