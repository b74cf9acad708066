# ruff: noqa: F811
"""Tokens of people and workers."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from qo.api.contract.token import CreateToken, Role
from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth import local_tokens, principals
from qo.dispatcher.auth.principals import Kind
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import ConfigError, Forbidden, NotFound, Unauthenticated
from support.dispatcher.capabilities import LEASE, NOW, SCOPE, TASK, issue, ring  # noqa: F401
from support.dispatcher.states import Clock, clock, state  # noqa: F401


def local(tmp_path: Path, **changed: Any) -> local_tokens.LocalTokens:
    return local_tokens.local_tokens(DispatcherSettings(secrets_dir=str(tmp_path / "secrets"), **changed))


def test_a_token_lets_its_holder_in_until_it_is_revoked(state: State, tmp_path: Path) -> None:
    known = local(tmp_path)
    with state.write() as tx:
        made = principals.create_token(tx, CreateToken(name="ada", role=Role.WRITER))
    with state.read() as tx:
        who = principals.identify(tx, made.token, known)
    assert (who.kind, who.name, who.role) == (Kind.USER, "ada", Role.WRITER)
    with state.write() as tx:
        first = principals.revoke_token(tx, made.id)
        assert principals.revoke_token(tx, made.id).revoked_at == first.revoked_at
    with state.read() as tx, pytest.raises(Unauthenticated):
        principals.identify(tx, made.token, known)


def test_a_token_expires_by_the_clock_of_the_state(state: State, clock: Clock, tmp_path: Path) -> None:
    known = local(tmp_path)
    with state.write() as tx:
        made = principals.create_token(tx, CreateToken(name="ada", role=Role.READER, ttl_s=60))
    clock.advance(50)
    with state.read() as tx:
        principals.identify(tx, made.token, known)
    clock.advance(10)
    with state.read() as tx, pytest.raises(Unauthenticated, match="expired"):
        principals.identify(tx, made.token, known)


@pytest.mark.parametrize("guess", ["", "qo_", "qo_wrong", "' OR 1=1 --", "\ud800", "x" * 100_000])
def test_a_guess_is_refused(state: State, tmp_path: Path, guess: str) -> None:
    with state.write() as tx:
        made = principals.create_token(tx, CreateToken(name="ada", role=Role.ADMIN))
    with state.read() as tx:
        stored = tx.value(sa.select(schema.api_tokens.c.hash))
        for tried in (guess, made.token[:-1], made.token.upper(), f"{made.token} ", stored):
            with pytest.raises(Unauthenticated):
                principals.identify(tx, tried, local(tmp_path))


def test_only_the_hash_of_a_token_is_kept_and_nothing_tells_it(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    known = local(tmp_path)
    with state.write() as tx:
        made = principals.create_token(tx, CreateToken(name="ada", role=Role.ADMIN))
        row = tx.all(sa.select(schema.api_tokens))[0]
        who = principals.identify(tx, made.token, known)
        listed = principals.list_tokens(tx)
    told = f"{row}{made!r}{made}{who!r}{known!r}{listed!r}{caplog.text}"
    assert made.token.startswith("qo_")
    for secret in (made.token, *known.workers, known.admin or ""):
        assert secret not in told


def test_tokens_are_listed_in_pages(state: State) -> None:
    with state.write() as tx:
        made = {principals.create_token(tx, CreateToken(name=f"n{n}", role=Role.READER)).id for n in range(5)}
        seen: list[str] = []
        after = None
        for _ in range(3):
            page = principals.list_tokens(tx, after, limit=2)
            seen += [each.id for each in page.tokens]
            after = page.next
    assert after is None
    assert set(seen) == made
    assert len(seen) == 5


def test_revoking_what_is_not_there_says_so(state: State) -> None:
    with state.write() as tx, pytest.raises(NotFound):
        principals.revoke_token(tx, "'; DELETE FROM api_tokens; --")


def test_kinds_of_tokens_do_not_pass_for_each_other(state: State, ring: KeyRing, tmp_path: Path) -> None:
    known = local(tmp_path)
    with state.write() as tx:
        admin = principals.identify(tx, known.admin or "", known)
        worker = principals.identify(tx, known.workers[0], known)
        made = principals.create_token(tx, CreateToken(name="w1", role=Role.WORKER))
        own = principals.identify(tx, made.token, known)
        with pytest.raises(Unauthenticated):
            principals.identify(tx, issue(ring, now=tx.now), known)
        for secret in (known.admin or "", known.workers[0], made.token):
            with pytest.raises(Unauthenticated):
                capabilities.verify(ring, secret, tx.now)
    assert (admin.kind, worker.kind, own.kind) == (Kind.USER, Kind.WORKER, Kind.WORKER)
    admin.require(Role.ADMIN)
    worker.require_worker()
    own.require_worker()
    for who in (worker, own):
        with pytest.raises(Forbidden):
            who.require(Role.READER)
    with pytest.raises(Forbidden):
        admin.require_worker()


@pytest.mark.fast
def test_each_role_may_do_what_lesser_ones_may() -> None:
    order = [Role.READER, Role.WRITER, Role.ADMIN]
    for held, role in enumerate(order):
        who = principals.Principal(Kind.USER, "x", role)
        for needed, least in enumerate(order):
            if held >= needed:
                who.require(least)
            else:
                with pytest.raises(Forbidden, match=least.value):
                    who.require(least)


@pytest.mark.fast
def test_the_worker_token_can_change_without_a_gap(tmp_path: Path) -> None:
    assert local(tmp_path, worker_token="old-old-old-old-old, new-new-new-new-new").workers == (
        "old-old-old-old-old",
        "new-new-new-new-new",
    )
    for weak in ("", ",", "short", "long-enough-to-be-one,short"):
        with pytest.raises(ConfigError):
            local(tmp_path, worker_token=weak)


@pytest.mark.fast
def test_tokens_of_one_machine_need_no_set_up_and_stay(tmp_path: Path) -> None:
    first, second = local(tmp_path), local(tmp_path)
    assert first == second
    for name in ("worker.token", "admin.token"):
        assert stat.S_IMODE((tmp_path / "secrets" / name).stat().st_mode) == 0o600
    (tmp_path / "secrets" / "admin.token").chmod(0o604)
    with pytest.raises(ConfigError, match="chmod 600"):
        local(tmp_path)


@pytest.mark.fast
def test_a_token_with_a_strange_name_is_refused() -> None:
    for name in ("", "a\nb", "x" * 201):
        with pytest.raises(ValidationError):
            CreateToken(name=name, role=Role.READER)
