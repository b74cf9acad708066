"""Credentials come from the standard AWS chain, and are renewed in time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from qo.errors import AccessDenied
from qo.store.s3.aws_credentials import Credentials, RefreshedCredentials, find_credentials, find_region

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def aws_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has no AWS settings but those a test makes here."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


async def test_credentials_that_are_given_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    source = await find_credentials(Credentials("given", "given"))
    assert await source.current() == ("given", "given", None)


async def test_the_environment_comes_before_the_files(monkeypatch: pytest.MonkeyPatch, aws_home: Path) -> None:
    (aws_home / "credentials").write_text("[default]\naws_access_key_id=file\naws_secret_access_key=file\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert await (await find_credentials()).current() == ("id", "secret", "token")


async def test_a_profile_is_found_in_the_files(monkeypatch: pytest.MonkeyPatch, aws_home: Path) -> None:
    (aws_home / "credentials").write_text("[work]\naws_access_key_id=id\naws_secret_access_key=secret\n")
    (aws_home / "config").write_text("[profile work]\nregion=eu-north-1\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert await (await find_credentials()).current() == ("id", "secret", None)
    assert find_region(None) == "eu-north-1"


async def test_without_credentials_the_error_says_how_to_give_them() -> None:
    with pytest.raises(AccessDenied, match="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        await find_credentials()


async def test_a_profile_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "misspelt")
    with pytest.raises(AccessDenied, match="misspelt"):
        await find_credentials()


def test_the_region_is_the_one_given_then_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_region(None) == "us-east-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert find_region(None) == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert find_region(None) == "eu-west-2"
    assert find_region("eu-west-3") == "eu-west-3"


class Role:
    """Credentials that have run out until they are renewed, as botocore holds them."""

    def __init__(self) -> None:
        self.renewed_by: list[threading.Thread] = []

    def refresh_needed(self) -> bool:
        return not self.renewed_by

    def get_frozen_credentials(self) -> tuple[str, str, str]:
        if self.refresh_needed():
            self.renewed_by.append(threading.current_thread())
        return ("id", "secret", f"token {len(self.renewed_by)}")


async def test_a_role_is_renewed_once_for_all_who_wait_and_beside_the_event_loop() -> None:
    role = Role()
    source = RefreshedCredentials(role)
    seen = await asyncio.gather(*(source.current() for _ in range(10)))
    assert set(seen) == {Credentials("id", "secret", "token 1")}
    assert len(role.renewed_by) == 1
    assert role.renewed_by[0] is not threading.main_thread()
