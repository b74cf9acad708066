from __future__ import annotations

import pytest

from qo.dispatcher.tasks import dedupe_keys
from qo.dispatcher.tasks.dedupe_keys import DedupeKey, KeyKind


@pytest.mark.parametrize(
    ("text", "stored", "key"),
    [
        (dedupe_keys.for_cursor("d", "g", 7), "cursor:d:g:7", DedupeKey(KeyKind.CURSOR, "d")),
        (dedupe_keys.for_invalidation("i"), "invalidation:i", DedupeKey(KeyKind.INVALIDATION, "i")),
        (dedupe_keys.for_refresh(3, "g", 4), "refresh:3:g:4", DedupeKey(KeyKind.REFRESH, "3")),
        (dedupe_keys.for_side_input("t", "g", 4), "beside:t:g:4", DedupeKey(KeyKind.BESIDE, "t")),
        (dedupe_keys.for_backfill("b", "a:b"), "backfill:b:a:b", DedupeKey(KeyKind.BACKFILL, "b")),
        (dedupe_keys.for_removal("r"), "removed:r", DedupeKey(KeyKind.REMOVAL, "r")),
        (dedupe_keys.for_emission("k"), "manual:k", DedupeKey(KeyKind.EMISSION, "k")),
        (dedupe_keys.partition_prefix("d", "g") + "p", "partition:d:g:p", DedupeKey(KeyKind.PARTITION, "d")),
        (dedupe_keys.SOURCE, "source", None),
    ],
)
def test_a_key_is_stored_as_ever_and_says_what_it_is_about(text: str, stored: str, key: DedupeKey | None) -> None:
    assert (text, DedupeKey.parse(text)) == (stored, key)
