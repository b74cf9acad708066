# ruff: noqa: F811
"""Capabilities of attempts, and the keys that sign them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import multiprocessing
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from qo.api.contract.task import Fence
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth.capability import Scope
from qo.dispatcher.auth.signing_keys import OVERLAP, TOKEN_TTL_MAX, KeyRing
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import ConfigError, Forbidden, LeaseLost, Unauthenticated
from support.dispatcher.capabilities import LEASE, NOW, SCOPE, TASK, issue, ring  # noqa: F401
from support.dispatcher.states import Clock, clock, state  # noqa: F401


def claims_of(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def b64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


@pytest.mark.fast
def test_a_capability_comes_back_as_it_was_issued(ring: KeyRing) -> None:
    capability = capabilities.verify(ring, issue(ring), NOW)
    assert (capability.task_id, capability.attempt, capability.scope) == (TASK, 2, SCOPE)
    assert capability.expires_at == NOW + timedelta(seconds=60) + timedelta(minutes=5)


@pytest.mark.fast
def test_who_has_made_a_token_and_who_has_not_read_the_same_in_it(ring: KeyRing, tmp_path: Path) -> None:
    """The one knows it again, the other has to look at the signature."""
    token = issue(ring)
    other = KeyRing.open(tmp_path / "keys")
    assert ring.verify(token, NOW) == other.verify(token, NOW)
    for at in (5, len(token) // 2, len(token) - 5):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        for each in (ring, other):
            with pytest.raises(Unauthenticated):
                each.verify(changed, NOW)


def test_a_token_carries_the_claims_of_its_contract_and_no_lease(ring: KeyRing) -> None:
    token = issue(ring)
    claims = claims_of(token)
    assert {"iss", "aud", "sub", "exp", "iat", "jti", "org_id", "task_id", "attempt", "datasets", "s3"} < set(
        claims
    )
    assert (claims["iss"], claims["aud"], claims["sub"]) == ("qo", "qo.task", f"task:{TASK}")
    assert jwt.get_unverified_header(token)["alg"] == "ES256"
    assert LEASE not in json.dumps(claims)


@pytest.mark.fast
@pytest.mark.parametrize(("timeout_s", "hours"), [(None, 24), (10**9, 24), (86_400, 24), (3600, 1 + 5 / 60)])
def test_a_token_outlives_the_timeout_but_never_a_day(
    timeout_s: float | None, hours: float, ring: KeyRing
) -> None:
    capability = capabilities.verify(ring, issue(ring, timeout_s=timeout_s), NOW)
    assert capability.expires_at - NOW == timedelta(hours=hours)


@pytest.mark.fast
def test_a_token_ends_by_the_time_it_is_told(ring: KeyRing) -> None:
    token = issue(ring)
    capabilities.verify(ring, token, NOW + timedelta(seconds=359))
    for late in (360, 361, 10**6):
        with pytest.raises(Unauthenticated, match="expired"):
            capabilities.verify(ring, token, NOW + timedelta(seconds=late))
    with pytest.raises(Unauthenticated, match="future"):
        capabilities.verify(ring, token, NOW - timedelta(seconds=120))


@pytest.mark.fast
def test_a_token_too_long_refers_to_the_state(ring: KeyRing) -> None:
    many = Scope(read_prefixes=tuple(f"s3://data/{number:040}/" for number in range(200)))
    token = issue(ring, scope=many)
    capability = capabilities.verify(ring, token, NOW)
    assert len(token) < capabilities.CHARS_MAX
    assert capability.scope == Scope()
    assert capability.capability_id == capabilities.capability_id(TASK, 2)


@pytest.mark.fast
@pytest.mark.parametrize(
    "missing",
    ["iss", "aud", "sub", "exp", "iat", "jti", "org_id", "task_id", "attempt", "lease_hash", "datasets", "s3"],
)
def test_a_missing_claim_is_refused(missing: str, ring: KeyRing) -> None:
    claims = claims_of(issue(ring))
    del claims[missing]
    with pytest.raises(Unauthenticated):
        capabilities.verify(ring, ring.sign(claims, NOW), NOW)


@pytest.mark.fast
@pytest.mark.parametrize(
    "changed",
    [
        {"iss": "other"},
        {"aud": "qo.user"},
        {"aud": ["qo.task"]},
        {"sub": "task:other"},
        {"sub": TASK},
        {"task_id": 7},
        {"task_id": ""},
        {"attempt": "2"},
        {"attempt": True},
        {"attempt": None},
        {"exp": "never"},
        {"exp": 2**80},
        {"exp": -1},
        {"exp": float(NOW.timestamp() + 100)},
        {"exp": int(NOW.timestamp()) + 10**7},
        {"iat": int(NOW.timestamp()) + 3600, "exp": int(NOW.timestamp()) + 7200},
        {"datasets": {}},
        {"datasets": ["d1"]},
        {"datasets": [{"dataset_id": "d1"}]},
        {"s3": []},
        {"s3": {"read_prefixes": "s3://data/", "write_prefixes": []}},
        {"s3": {"read_prefixes": [1], "write_prefixes": []}},
        {"capability_id": "anything"},
    ],
)
def test_a_malformed_claim_is_refused(changed: dict[str, Any], ring: KeyRing) -> None:
    token = ring.sign(claims_of(issue(ring)) | changed, NOW)
    with pytest.raises(Unauthenticated):
        capabilities.verify(ring, token, NOW)


def _forgeries(ring: KeyRing) -> dict[str, str]:
    token = issue(ring)
    claims, kid = claims_of(token), jwt.get_unverified_header(token)["kid"]
    head, body, signature = token.split(".")
    public = jwt.PyJWK(ring.jwks()["keys"][0]).key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    stranger = ec.generate_private_key(ec.SECP256R1())

    def raw(header: dict[str, Any], signed: bytes) -> str:
        return f"{b64(json.dumps(header).encode())}.{body}.{b64(signed)}"

    hs_input = f"{b64(json.dumps({'alg': 'HS256', 'kid': kid}).encode())}.{body}".encode()
    other = b64(json.dumps(claims | {"attempt": 3}).encode())
    return {
        "none": jwt.encode(claims, None, algorithm="none", headers={"kid": kid}),
        "None": raw({"alg": "None", "kid": kid}, b""),
        "no signature": f"{head}.{body}.",
        "no alg": raw({"kid": kid}, b"x"),
        "HS256 with the public key": f"{hs_input.decode()}.{b64(hmac.digest(public, hs_input, hashlib.sha256))}",
        "a stranger's key under our kid": jwt.encode(claims, stranger, algorithm="ES256", headers={"kid": kid}),
        "a stranger's kid": jwt.encode(claims, stranger, algorithm="ES256", headers={"kid": "x" * 43}),
        "no kid": jwt.encode(claims, stranger, algorithm="ES256"),
        "a kid that is a path": jwt.encode(
            claims, stranger, algorithm="ES256", headers={"kid": "../../etc/passwd"}
        ),
        "a key it brings itself": jwt.encode(
            claims, stranger, algorithm="ES256", headers={"jwk": {"kty": "EC"}, "jku": "http://127.0.0.1:1/"}
        ),
        "critical extensions": jwt.encode(
            claims, stranger, algorithm="ES256", headers={"kid": kid, "crit": ["x"]}
        ),
        "another body": f"{head}.{other}.{signature}",
        "a cut signature": token[:-4],
        "a zero signature": f"{head}.{body}.{b64(bytes(64))}",
        "too many parts": f"{token}.x",
        "empty": "",
        "dots": "..",
        "not ascii": "\u00e4.\u00f6.\u00fc",
        "a lone surrogate": "\ud800",
        "long": "a" * 1_000_000,
        "deep": f"{b64(b'[' * 5000)}.{body}.{signature}",
    }


@pytest.mark.fast
def test_no_forgery_is_believed(ring: KeyRing) -> None:
    for name, forged in _forgeries(ring).items():
        try:
            capabilities.verify(ring, forged, NOW)
        except Unauthenticated:
            continue
        pytest.fail(f"believed: {name}")


@pytest.mark.fast
def test_a_token_speaks_for_its_own_attempt_only(ring: KeyRing) -> None:
    capability = capabilities.verify(ring, issue(ring), NOW)
    capabilities.bind(capability, Fence(task_id=TASK, attempt=2, lease_id=LEASE))
    for changed in ({"task_id": "other"}, {"attempt": 3}, {"attempt": 1}, {"lease_id": "other"}):
        fence = Fence(**{"task_id": TASK, "attempt": 2, "lease_id": LEASE, **changed})
        with pytest.raises(Forbidden):
            capabilities.bind(capability, fence)


@pytest.mark.fast
def test_a_fresh_token_is_due_before_the_old_one_ends(ring: KeyRing) -> None:
    capability = capabilities.verify(ring, issue(ring, timeout_s=None), NOW)
    assert not capabilities.needs_renewal(capability, NOW + timedelta(hours=17))
    assert capabilities.needs_renewal(capability, NOW + timedelta(hours=18))


def add_task(state: State, **changed: Any) -> None:
    with state.write() as tx:
        row: dict[str, Any] = {
            "id": TASK, "job_id": "j", "edition_id": "e", "logical_id": "l", "dag": "d", "job": "j", "operator": "udf",
            "queue": "lambda", "dedupe_key": "manual:1", "status": "running", "token": "t", "attempt": 2,
            "available_at": tx.now, "lease_id": LEASE, "lease_expires_at": tx.now + timedelta(seconds=60),
            "lease_s": 60.0, "retry_count": 0, "max_retries": 2, "deliveries": 0, "max_deliveries": 10,
            "cancel_requested": False, "created_at": tx.now, "updated_at": tx.now, "wakes": 0,
        }  # fmt: skip
        tx.insert(schema.tasks, [row | changed])


def test_a_token_is_useless_once_its_attempt_is_over(state: State, ring: KeyRing) -> None:
    add_task(state)
    with state.read() as tx:
        capability = capabilities.verify(ring, issue(ring, now=tx.now), tx.now)
        capabilities.require_running(tx, capability, leased=True)
    over: list[dict[str, Any]] = [
        {"attempt": 3, "lease_id": "next"},
        {"lease_id": "next"},
        {"status": "completed", "lease_id": None},
        {"status": "pending", "lease_id": None},
        {"status": "cancelled", "lease_id": None},
    ]
    for changed in over:
        with state.write() as tx:
            tx.execute(
                sa.update(schema.tasks).values({"status": "running", "attempt": 2, "lease_id": LEASE} | changed)
            )
        with state.read() as tx, pytest.raises(LeaseLost, match="over"):
            capabilities.require_running(tx, capability)


def test_a_lapsed_lease_is_told_apart_from_a_lost_one(state: State, ring: KeyRing, clock: Clock) -> None:
    add_task(state)
    with state.read() as tx:
        capability = capabilities.verify(ring, issue(ring, now=tx.now), tx.now)
    clock.advance(61)
    with state.read() as tx:
        capabilities.require_running(tx, capability)
        with pytest.raises(LeaseLost, match="heartbeat"):
            capabilities.require_running(tx, capability, leased=True)


def test_a_task_that_never_was_has_no_valid_token(state: State, ring: KeyRing) -> None:
    with state.read() as tx:
        for task_id in (TASK, "'; DROP TABLE tasks; --"):
            capability = capabilities.verify(ring, issue(ring, now=tx.now, task_id=task_id), tx.now)
            with pytest.raises(LeaseLost):
                capabilities.require_running(tx, capability)


@pytest.mark.fast
def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    KeyRing.open(tmp_path / "secrets" / "keys")
    (key,) = (tmp_path / "secrets" / "keys").iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


@pytest.mark.fast
def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    KeyRing.open(tmp_path / "keys")
    (key,) = (tmp_path / "keys").iterdir()
    key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"chmod 600 .*key-"):
        KeyRing.open(tmp_path / "keys")
    key.chmod(0o600)
    key.parent.chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        KeyRing.open(tmp_path / "keys")


@pytest.mark.fast
@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_file_that_is_no_key_is_named(content: bytes, tmp_path: Path) -> None:
    KeyRing.open(tmp_path / "keys")
    (key,) = (tmp_path / "keys").iterdir()
    key.write_bytes(content)
    with pytest.raises(ConfigError, match=r"key-000000000000\.pem"):
        KeyRing.open(tmp_path / "keys")


def _open_and_tell(directory: str, barrier: Any, answers: Any) -> None:
    barrier.wait(30)
    answers.put(KeyRing.open(directory).jwks()["keys"][0]["kid"])


def test_processes_that_start_at_once_share_one_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=_open_and_tell, args=(str(tmp_path / "keys"), barrier, answers)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    assert len({answers.get(timeout=60) for _ in processes}) == 1
    for process in processes:
        process.join(30)
    assert len(list((tmp_path / "keys").iterdir())) == 1


@pytest.mark.fast
def test_a_new_key_is_published_before_it_signs_and_the_old_one_verifies_after(tmp_path: Path) -> None:
    ours, other = KeyRing.open(tmp_path / "keys"), KeyRing.open(tmp_path / "keys")
    (old,) = [key["kid"] for key in ours.jwks()["keys"]]
    before = issue(ours)
    new = ours.rotate(NOW)
    assert [key["kid"] for key in other.jwks()["keys"]] == [old, new]
    assert jwt.get_unverified_header(issue(other))["kid"] == old
    later = NOW + OVERLAP + timedelta(seconds=1)
    after = issue(other, now=later)
    assert jwt.get_unverified_header(after)["kid"] == new
    capabilities.verify(ours, before, NOW)
    capabilities.verify(ours, after, later)


@pytest.mark.fast
def test_an_old_key_goes_when_its_last_token_has_ended_and_not_before(tmp_path: Path) -> None:
    ring = KeyRing.open(tmp_path / "keys")
    new = ring.rotate(NOW)
    switch = NOW + OVERLAP
    last = issue(ring, now=switch, timeout_s=None)
    capabilities.verify(ring, last, switch + TOKEN_TTL_MAX - timedelta(seconds=1))
    assert ring.prune(switch + TOKEN_TTL_MAX) == []
    with pytest.raises(Unauthenticated):
        ring.verify(last, switch + TOKEN_TTL_MAX + timedelta(seconds=1))
    assert len(ring.prune(switch + TOKEN_TTL_MAX + timedelta(seconds=1))) == 1
    assert [key["kid"] for key in ring.jwks()["keys"]] == [new]
    assert ring.prune(NOW + timedelta(days=9999)) == []


@pytest.mark.fast
def test_two_who_rotate_at_once_make_one_key(tmp_path: Path) -> None:
    ours, other = KeyRing.open(tmp_path / "keys"), KeyRing.open(tmp_path / "keys")
    assert ours.rotate(NOW) == other.rotate(NOW)
    assert len(ours.jwks()["keys"]) == 2


@pytest.mark.fast
def test_the_published_keys_are_public_and_verify_elsewhere(ring: KeyRing) -> None:
    (key,) = ring.jwks()["keys"]
    assert set(key) == {"kty", "crv", "x", "y", "use", "alg", "kid"}
    token = issue(ring)
    public = jwt.PyJWKSet.from_dict(ring.jwks())[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, public, algorithms=["ES256"], audience="qo.task", options={"verify_iat": False})
    assert claims["task_id"] == TASK
