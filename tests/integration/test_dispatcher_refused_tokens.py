"""A refused token is named by where it came from."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from qo.agent.service import run_runtime
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher.auth.local_tokens import presented_token
from qo.dispatcher.state.database import State
from qo.errors import ConfigError, Unauthenticated
from support.cli.command import Qo
from support.dispatcher.listeners import served


def test_a_worker_of_a_dispatcher_elsewhere_makes_up_no_token_of_its_own(tmp_path: Path) -> None:
    elsewhere = DispatcherSettings(
        secrets_dir=str(tmp_path / "secrets"), internal_url="http://dispatcher.example:8471"
    )
    with pytest.raises(ConfigError, match=r"secrets/worker\.token.*QO_WORKER_TOKEN.*QO_SECRETS_DIR"):
        presented_token(elsewhere)
    assert not (tmp_path / "secrets").exists()
    here = replace(elsewhere, internal_url=None)
    made = presented_token(here)
    assert made.origin == str(tmp_path / "secrets/worker.token")
    assert presented_token(elsewhere) == made
    beside = DispatcherSettings(secrets_dir=str(tmp_path / "new"), internal_url="http://127.0.0.1:8471")
    assert Path(presented_token(beside).origin).exists()  # The dispatcher that starts later takes it for its own.
    assert presented_token(replace(here, worker_token="x" * 16)).origin == "QO_WORKER_TOKEN"


async def test_a_worker_that_is_refused_says_which_token_it_showed(state: State, tmp_path: Path) -> None:
    async with served(state, tmp_path / "one") as dispatcher:
        chosen = DispatcherSettings(
            secrets_dir=str(tmp_path / "two"),
            internal_listen=dispatcher.addresses.internal.removeprefix("http://"),
        )
        settings = Settings(store=f"local:{tmp_path / 'store'}", dispatcher=chosen)
        with pytest.raises(Unauthenticated, match=r"two/worker\.token.*QO_WORKER_TOKEN.*QO_SECRETS_DIR"):
            await run_runtime(settings, "python", stop_when_empty=True)


async def test_a_command_that_is_refused_says_which_token_it_showed(state: State, tmp_path: Path) -> None:
    async with served(state, tmp_path / "one") as dispatcher:
        environ = {"QO_DISPATCHER_URL": dispatcher.addresses.public}
        answer = await asyncio.to_thread(Qo(tmp_path, environ).here, "dag", "list")
        assert ".qo/secrets/admin.token" in answer.err
        assert "QO_TOKEN" in answer.err
        assert "QO_SECRETS_DIR" in answer.err
        answer = await asyncio.to_thread(Qo(tmp_path, {**environ, "QO_TOKEN": "qo_wrong"}).here, "dag", "list")
        assert "QO_TOKEN" in answer.err
        # The other listener is for workers.
        wrong = {"QO_DISPATCHER_URL": dispatcher.addresses.internal, "QO_TOKEN": "qo_wrong"}
        answer = await asyncio.to_thread(Qo(tmp_path, wrong).here, "dag", "list")
        assert "workers" in answer.err
