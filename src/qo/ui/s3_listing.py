"""Lists with the delimiters and tokens of S3, over a store that lists keys only in order."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import NamedTuple

from qo.store.port import Entry, ObjectStore

FIRST, GROWTH = 4, 4  # Keys of the first request if prefixes are expected, and how requests grow.
LAST = "\U0010ffff"  # Sorts after everything that may follow a prefix.


class DelimitedPage(NamedTuple):
    """Entries and common prefixes; the next page begins after ``after``, which is empty on the last page."""

    entries: Sequence[Entry]
    common: Sequence[str]
    after: str


async def list_with_delimiter(
    store: ObjectStore, prefix: str, *, delimiter: str, after: str, limit: int
) -> DelimitedPage:
    """List up to ``limit`` keys and common prefixes after ``after``.

    A common prefix costs one request, however many keys it has.
    """
    entries: list[Entry] = []
    common: list[str] = []
    within = after.removesuffix(LAST) if delimiter and after.endswith(LAST) else None
    most = FIRST if delimiter else limit
    while (room := limit - len(entries) - len(common)) > 0:
        page = await store.list(prefix, start_after=after, limit=min(room, most))
        for entry in page.entries:
            cut = entry.key.find(delimiter, len(prefix)) if delimiter else -1
            if within is not None and entry.key.startswith(within):
                after = max(after, entry.key)  # Listed already, as its common prefix.
            elif cut < 0:
                entries.append(entry)
                after, within = entry.key, None
            else:
                within = entry.key[: cut + len(delimiter)]
                common.append(within)
                after = within + LAST
        if not page.truncated:
            return DelimitedPage(entries, common, "")
        # A common prefix uses only the first key of a page, so pages stay small; without prefixes they grow.
        most = FIRST if within is not None else most * GROWTH
    # All keys that remain may belong to the last common prefix.
    more = within is None or bool((await store.list(prefix, start_after=after, limit=1)).entries)
    return DelimitedPage(entries, common, after if more and limit > 0 else "")


def encode_token(after: str) -> str:
    return base64.urlsafe_b64encode(after.encode()).decode() if after else ""


def decode_token(token: str) -> str:
    """Decode a continuation token. Raises ValueError if ``encode_token`` did not make it."""
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise ValueError("the continuation token is not valid: list again from the start") from None
