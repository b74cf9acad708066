"""qo key and qo source secret, as an operator uses them; on files, and on rows that a key encrypts."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli.command import Qo


@pytest.fixture
def keyed(tmp_path: Path) -> Qo:
    """An installation whose secrets are in its database."""
    key = Qo(tmp_path).ok("key", "generate", "k1").strip()
    return Qo(tmp_path, {"QO_SECRETS_KEYS": key, "QO_SECRETS_PLACE": "database"})


@pytest.fixture(params=["files", "database"])
def qo(request: pytest.FixtureRequest, tmp_path: Path) -> Qo:
    return Qo(tmp_path) if request.param == "files" else request.getfixturevalue("keyed")


def test_keys_are_listed_rotated_and_revoked_and_never_shown(qo: Qo) -> None:
    (first,) = qo.json("key", "list")
    assert (first["now"], first["alg"], first["retires_at"]) == ("signs", "ES256", None)
    assert first["created_at"] is not None
    rotated = qo.json("key", "rotate")
    assert qo.json("key", "rotate") == rotated
    listed = qo.json("key", "list")
    assert [each["now"] for each in listed] == ["signs", "signs later"]
    assert listed[0]["retires_at"] > listed[1]["signs_from"]
    assert all("d" not in each and "PRIVATE" not in str(each) for each in listed)
    revoked = qo.json("key", "revoke", first["kid"])
    assert {each["kid"] for each in qo.json("key", "list")} == {revoked["made"], rotated["made"]}
    assert qo.here("key", "revoke", first["kid"]).code == 3
    assert qo.json("key", "rotate", "--urgent")["made"] not in (rotated["made"], revoked["made"])
    assert "signs later" in qo.ok("key", "list")


def test_a_secret_of_a_webhook_is_shown_once(qo: Qo) -> None:
    secret = qo.ok("source", "secret", "set", "shop").strip()
    assert secret.startswith("whsec_")
    assert qo.ok("source", "secret", "rotate", "shop", "--stdin", stdin="given by the sender\n") == "stored shop\n"
    assert qo.here("source", "secret", "rotate", "shop").code == 4
    (listed,) = qo.json("source", "secret", "list")
    assert (listed["name"], listed["valid"]) == ("shop", 2)
    table = qo.ok("source", "secret", "list")
    assert secret not in table
    assert "given by" not in table
    assert qo.ok("source", "secret", "retire", "shop") == "retired 1 secret of shop\n"
    assert qo.ok("source", "secret", "remove", "shop") == "removed shop\n"
    assert qo.here("source", "secret", "remove", "shop").code == 3
    refused = qo.here("source", "secret", "set", "shop", "--stdin", stdin="short")
    assert refused.code == 2
    assert "short" not in refused.err.replace("shorter", "")
    assert qo.here("source", "secret", "set", "../shop").code == 2


def test_files_are_imported_once_and_the_key_that_encrypts_them_is_replaced(tmp_path: Path, keyed: Qo) -> None:
    plain = Qo(tmp_path)
    (key,) = plain.json("key", "list")
    plain.ok("source", "secret", "set", "shop")
    first = keyed.json("key", "import")
    assert first == {"imported": [key["name"], "webhook-shop"], "present": [], "different": [], "removed": False}
    assert keyed.json("key", "import", "--remove")["present"] == first["imported"]
    assert not [
        path for path in (tmp_path / ".qo/secrets").iterdir() if path.name.startswith(("key-", "webhook-"))
    ]
    assert [each["kid"] for each in keyed.json("key", "list")] == [key["kid"]]
    old = keyed.environ["QO_SECRETS_KEYS"]
    new = plain.ok("key", "generate", "k2").strip()
    both = Qo(tmp_path, {**keyed.environ, "QO_SECRETS_KEYS": f"{new},{old}"})
    assert both.ok("key", "rewrap") == "encrypted 2 secrets again\n"
    latest = Qo(tmp_path, {**keyed.environ, "QO_SECRETS_KEYS": new})
    assert [each["encrypted_with"] for each in latest.json("key", "list")] == ["k2"]
    refused = keyed.here("key", "list")
    assert "encrypted with key k2, which this process does not have" in refused.err
    without = plain.here("key", "list")
    assert without.code == 2
    assert "encrypted with key k2, and this process would use files" in without.err


def test_without_a_key_the_database_is_no_place_for_secrets(tmp_path: Path) -> None:
    refused = Qo(tmp_path, {"QO_SECRETS_PLACE": "database"}).here("key", "list")
    assert refused.code == 2
    assert "qo key generate" in refused.err
    assert Qo(tmp_path, {"QO_SECRETS_PLACE": "database"}).here("key", "import").code == 2
