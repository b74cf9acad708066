"""The public keys over HTTP: what verifies, no more and no less, and how a stranger verifies with them."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest

from qo.dispatcher.auth.signing_keys import OVERLAP, TOKEN_TTL_MAX, KeyRing
from qo.dispatcher.state.database import State
from support.dispatcher.capabilities import issue
from support.dispatcher.listeners import Served, served
from support.dispatcher.states import Clock

PATH = "/internal/jwks/task"
GUIDE = Path(__file__).parents[2] / "docs/guides/security.md"


async def published(dispatcher: Served) -> list[str]:
    return [each["kid"] for each in (await dispatcher.get(PATH, internal=True)).json()["keys"]]


async def test_the_set_has_the_keys_that_sign_will_sign_or_may_still_verify(
    state: State, state_clock: Clock, tmp_path: Path
) -> None:
    async with served(state, tmp_path) as dispatcher:
        ring = dispatcher.context.keyring
        (first,) = await published(dispatcher)
        with state.read() as tx:
            second = ring.rotate(tx.now)
        assert await published(dispatcher) == [first, second]
        state_clock.advance(OVERLAP.total_seconds() + 10)
        assert await published(dispatcher) == [first, second], "the first may have signed a token that is valid"
        state_clock.advance(TOKEN_TTL_MAX.total_seconds())
        assert await published(dispatcher) == [second], "even if nobody has deleted it"


async def test_the_set_is_sent_again_only_when_it_has_changed(state: State, tmp_path: Path) -> None:
    async with served(state, tmp_path) as dispatcher:
        first = await dispatcher.get(PATH, internal=True)
        etag = first.headers["etag"]
        assert first.headers["cache-control"] == "public, max-age=60"
        for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            again = await dispatcher.get(PATH, internal=True, headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        with state.read() as tx:
            dispatcher.context.keyring.rotate(tx.now)
        changed = await dispatcher.get(PATH, internal=True, headers={"If-None-Match": etag})
        assert changed.status_code == 200
        assert len(changed.json()["keys"]) == 2
        assert changed.headers["etag"] != etag


async def test_the_verifier_of_the_guide_accepts_capabilities_and_nothing_else(
    state: State, tmp_path: Path
) -> None:
    async with served(state, tmp_path) as dispatcher:
        source = re.search(r"^```python\n# verifier\.py\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
        assert source is not None
        guide: dict[str, Any] = {"__name__": "verifier"}
        exec(source[1].replace("http://127.0.0.1:8471", dispatcher.addresses.internal), guide)
        guide["KEYS"].cooldown_duration = 0  # Between two fetches for unknown keys.
        ring = dispatcher.context.keyring
        with state.read() as tx:
            now = tx.now

        async def verify(token: str) -> dict[str, Any]:
            return await asyncio.to_thread(guide["verify"], token)

        assert (await verify(issue(ring, now=now)))["attempt"] == 2
        ring.revoke(ring.list_keys(now)[0].kid, now)
        assert (await verify(issue(ring, now=now)))["attempt"] == 2, "a key that is new is fetched"
        stranger = KeyRing.open(tmp_path / "another")
        unsigned = jwt.encode({"iss": "qo", "aud": "qo.task"}, None, algorithm="none")
        for token in (issue(stranger, now=now), unsigned, issue(ring, now=now - timedelta(days=2)), "nonsense"):
            with pytest.raises(jwt.PyJWTError):
                await verify(token)
