"""Passwords, tokens and the address of the database stay inside the dispatcher."""

from __future__ import annotations

import logging
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from qo.agent.heartbeats import HeldTask
from qo.api.contract.task import Claimed, HeartbeatAnswer, Work
from qo.config import origins
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher.auth.local_tokens import LocalTokens
from qo.dispatcher.engine.loop import FAILURES_MAX, Loop
from qo.dispatcher.secrets.file_secrets import FileSecrets
from qo.dispatcher.secrets.webhook_secrets import read_secrets
from qo.dispatcher.service import Dispatcher, run_dispatcher
from qo.dispatcher.state.database import open_state
from qo.errors import ConfigError, Unavailable
from qo.worker.loop.cancel import CancelToken
from support.cli.command import Qo
from support.dispatcher.listeners import NO_TLS, context_of, listening
from support.dispatcher.states import create_tables
from support.servers.ports import free_ports

CANARY = "canary-in-the-coal-mine"


USER = "keeper"


def nowhere() -> str:
    """The URL of a database that is not there."""
    return f"postgresql://{USER}:{CANARY}@127.0.0.1:{free_ports(1)[0]}/books"


def settings_of(tmp_path: Path, **changed: Any) -> Settings:
    chosen = DispatcherSettings(
        listen="127.0.0.1:0",
        internal_listen="127.0.0.1:0",
        secrets_dir=str(tmp_path / "secrets"),
        data=f"file:{tmp_path / 'data'}",
        token=f"qo_{CANARY}",
        worker_token=f"qow_{CANARY}",
    )
    return Settings(store=f"local:{tmp_path / 'store'}", dispatcher=replace(chosen, **changed))


@pytest.mark.fast
def test_settings_are_printed_without_their_secrets(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, state=nowhere())
    assert CANARY not in f"{settings!r} {settings} {settings.dispatcher!r}"
    assert "internal_listen" in repr(settings)


@pytest.mark.fast
def test_tokens_are_printed_nowhere(tmp_path: Path) -> None:
    work = Work(
        task_id="t", attempt=1, dag="d", job="j", version=1, runtime="python", operator="a:b", update_strategy="replace"
    )  # fmt: skip
    ends = datetime(2030, 1, 1, tzinfo=UTC)
    claimed = Claimed(
        attempt=1, lease_id="l", at=ends, lease_expires_at=ends, heartbeat_s=1, capability_token=CANARY, work=work
    )
    held = HeldTask(claimed, CancelToken(), token=CANARY)
    answer = HeartbeatAnswer(lease_expires_at=ends, capability_token=CANARY)
    assert CANARY not in f"{claimed!r} {held!r} {answer!r} {answer} {LocalTokens((CANARY,), CANARY)!r}"


@pytest.mark.fast
@pytest.mark.parametrize("said", [f"mysql://{USER}:{CANARY}@h/books", f"postgresql:{USER}:{CANARY}@h"])
def test_a_secret_setting_that_is_wrong_is_not_repeated(said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dispatcher\.state must be .* environment QO_STATE is not") as caught:
        origins.load(environ={"QO_STATE": said}, cwd=tmp_path)
    assert CANARY not in str(caught.value)


def test_config_show_hides_what_is_secret(tmp_path: Path) -> None:
    environ = {"QO_STATE": nowhere(), "QO_TOKEN": f"qo_{CANARY}", "QO_WORKER_TOKEN": f"qow_{CANARY}"}
    qo = Qo(tmp_path, environ)
    assert CANARY not in qo.ok("config", "show") + qo.here("config", "show", "--json").out


@pytest.mark.fast
@pytest.mark.parametrize(
    "place",
    [
        f"{USER}:{CANARY}/x@127.0.0.1:5432/books",
        f"{USER}:{CANARY}@x@127.0.0.1:5432/books",
        f"{USER}:{CANARY}#x@127.0.0.1/books",
        f"{USER}:{CANARY}@127.0.0.1:port/books",
        f"{USER}:{CANARY}@[::1/books",
    ],
)
def test_a_url_that_cannot_be_read_is_a_setting_that_is_wrong(place: str) -> None:
    with pytest.raises(ConfigError, match="write postgresql://") as caught:
        open_state(f"postgresql://{place}")
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.fast
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_means_whom_it_names(scheme: str) -> None:
    state = open_state(f"{scheme}://postgres:a%2Fb%40c@127.0.0.1:5433/books")
    url = state.engine.url
    state.close()
    assert (url.username, url.password, url.host, url.port, url.database) == (
        "postgres", "a/b@c", "127.0.0.1", 5433, "books",
    )  # fmt: skip


@pytest.mark.fast
def test_the_state_file_is_for_its_owner_only(tmp_path: Path) -> None:
    state = open_state(f"sqlite:{tmp_path}/kept/state.db")
    create_tables(state)
    made = [tmp_path / "kept", *(tmp_path / "kept").iterdir()]
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) & 0o077 for each in made}
    state.close()
    assert len(modes) > 2  # What SQLite writes ahead is as private as the rest.
    assert set(modes.values()) == {0}


@pytest.mark.fast
def test_a_state_that_cannot_be_opened_is_a_setting_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = open_state(f"sqlite:{tmp_path}/file/state.db")
    with pytest.raises(ConfigError, match="cannot be opened"), state.read():
        pass
    state.close()


@pytest.mark.fast
def test_a_webhook_secret_that_others_can_read_counts_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "webhook-shop"
    kept.write_text(f"{CANARY}\n")
    kept.chmod(0o644)
    with pytest.raises(Unavailable, match="cannot be used") as caught:
        read_secrets(FileSecrets(tmp_path), "shop")
    assert str(tmp_path) not in str(caught.value)
    assert "chmod 600" in caplog.text
    assert CANARY not in caplog.text
    kept.chmod(0o600)
    assert read_secrets(FileSecrets(tmp_path), "shop") == [CANARY.encode()]


async def test_nobody_is_told_where_the_database_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = nowhere()
    state = open_state(url)
    tokens = LocalTokens((f"qow_{CANARY}",), f"qo_{CANARY}")
    settings = settings_of(tmp_path, state=url)
    context = replace(context_of(state, tmp_path), tokens=tokens, settings=settings)
    asked = [
        ("public", "/readyz", None),
        ("public", "/livez", None),
        ("public", "/metrics", f"qo_{CANARY}"),
        ("public", "/v1/dags", f"qo_{CANARY}"),
        ("public", "/v1/dags", "qo_somebody-else"),
        ("internal", "/metrics", None),
        ("internal", "/internal/sources", f"qow_{CANARY}"),
    ]
    said: list[str] = []
    async with listening(context) as at, httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
        for listener, path, token in asked:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            answer = await http.get(f"{getattr(at, listener)}{path}", headers=headers)
            said.append(f"{answer.status_code} {answer.headers} {answer.text}")
    state.close()
    told = "\n".join(said)
    assert told.count("503") >= 5
    for kept in (CANARY, USER, "127.0.0.1", "refused", "psycopg"):
        assert kept not in told, kept
    assert CANARY not in caplog.text
    assert "its driver says" in caplog.text  # We are told.


async def test_the_canary_is_in_no_log_of_a_dispatcher_that_cannot_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(Unavailable) as caught:
        await run_dispatcher(settings_of(tmp_path, state=nowhere()))
    logging.getLogger("tests").error("it ended", exc_info=caught.value)
    assert "it ended" in caplog.text
    assert CANARY not in caplog.text
    assert str(caught.value) == "the state database does not answer"


async def test_the_canary_is_in_no_log_of_loops_that_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    state = open_state(nowhere())

    class NoQueues:
        async def publish(self, queue: str, wakes: Any) -> None: ...

    settings = settings_of(
        tmp_path, state=str(state.engine.url), keep_history_days=30
    )  # So that it is purged, too.
    dispatcher = Dispatcher(state, NoQueues(), settings)
    for loop in dispatcher.loops:
        if loop.name == "invoker":
            continue  # There is none here.
        with pytest.raises(Unavailable) as caught:
            await loop.once()
        assert USER not in str(caught.value)
        logging.getLogger("tests").error("failed", exc_info=caught.value)
    state.close()
    assert CANARY not in caplog.text


async def test_what_keeps_a_loop_from_its_work_is_told_without_its_words() -> None:
    def tick() -> int:
        raise RuntimeError(CANARY)

    loop = Loop("router", tick, rest_s=0.01)
    loop.health.failing, loop.health.error = FAILURES_MAX, f"RuntimeError: {CANARY}"
    assert loop.trouble == f"router has failed {FAILURES_MAX} times in a row: the log says why"


def test_who_sits_at_the_machine_is_told_what_is_wrong(tmp_path: Path) -> None:
    url = nowhere()
    answer = Qo(tmp_path, {"QO_STATE": url}).here("dag", "list")
    assert answer.code == Unavailable.exit_code
    assert "the state database does not answer\nits driver says: " in answer.err
    assert "127.0.0.1" in answer.err  # Which host it was is of use here.
    assert CANARY not in answer.out + answer.err
