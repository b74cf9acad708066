"""Signing keys over random histories: one signs at every moment, and a token is valid as long as it was issued for."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth.signing_keys import TOKEN_TTL_MAX, KeyRing, UnknownKey
from support.dispatcher.capabilities import NOW, issue

pytestmark = pytest.mark.fast

HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["rotate", "urgent", "prune", "revoke", "issue"]),
        st.sampled_from([0, 1, 20, 31, 301, 3600, 86_401]),  # Seconds that pass before it.
        st.booleans(),  # By which of two dispatchers.
    ),
    min_size=1,
    max_size=15,
)


@settings(max_examples=20, deadline=None)
@given(HISTORY)
def test_one_key_signs_and_no_token_ends_before_its_time_unless_its_key_was_revoked(
    history: list[tuple[str, int, bool]],
) -> None:
    with TemporaryDirectory() as directory:
        rings = [KeyRing.open(Path(directory) / "keys") for _ in range(2)]
        now, tokens = NOW, list[tuple[str, datetime, str]]()
        for action, seconds, which in history:
            now, ring = now + timedelta(seconds=seconds), rings[which]
            uses = {each.use: each.kid for each in ring.list_keys(now)}
            match action:
                case "rotate" | "urgent":
                    ring.rotate(now, urgent=action == "urgent")
                case "prune":
                    ring.prune(now)
                case "revoke":
                    ring.revoke(uses["signs"], now)
                    tokens = [each for each in tokens if each[2] != uses["signs"]]
                case _:
                    tokens.append((issue(ring, now=now, timeout_s=None), now + TOKEN_TTL_MAX, uses["signs"]))
            for each in rings:
                assert [key.use for key in each.list_keys(now)].count("signs") == 1
            check(rings, tokens, now)


def check(rings: list[KeyRing], tokens: list[tuple[str, datetime, str]], now: datetime) -> None:
    for token, ends, kid in tokens:
        for ring in rings:
            if now < ends:
                capabilities.verify(ring, token, now)
                assert kid in {each["kid"] for each in ring.jwks(now)["keys"]}
            elif kid not in {each["kid"] for each in ring.jwks(now)["keys"]}:
                with pytest.raises(UnknownKey):
                    ring.verify(token, now)
