"""Stores of secrets: each keeps the same promises, whoever writes beside it."""

from __future__ import annotations

import base64
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
import pytest
import sqlalchemy as sa

from qo.config.dispatcher import DispatcherSettings
from qo.config.secret_keys import SecretPlace, SecretsSettings
from qo.config.settings import Settings
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth.signing_keys import OVERLAP, TOKEN_TTL_MAX, URGENT_OVERLAP, KeyRing, UnknownKey
from qo.dispatcher.secrets import command_secrets, database_secrets, webhook_secrets
from qo.dispatcher.secrets.chosen_store import import_files, open_database_secrets, open_secrets
from qo.dispatcher.secrets.command_secrets import CommandSecrets
from qo.dispatcher.secrets.database_secrets import DatabaseSecrets
from qo.dispatcher.secrets.file_secrets import FileSecrets
from qo.dispatcher.secrets.secret_store import KEYS, WEBHOOKS, SecretStore
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import ConfigError, CorruptRecord, NotFound, QoError, Refused, UsageError
from qo.queue.sealer import Sealer
from support.dispatcher.capabilities import NOW, issue
from support.dispatcher.states import Clock, opened

if TYPE_CHECKING:
    from support.servers.s3 import S3Server

K1, K2 = (f"{name}:{base64.b64encode(bytes([at]) * 32).decode()}" for at, name in enumerate(("k1", "k2")))
MANAGER = Path(__file__).parents[1] / "apps" / "secret_manager.py"
FIRST = "key-000000000000.pem"
CANARY = "canary-of-a-webhook"
NO_STATE: Any = None

Opener = Callable[[], SecretStore]


def database(state: State, keys: str = K1) -> DatabaseSecrets:
    return open_database_secrets(SecretsSettings(keys=keys), state)


@pytest.fixture(params=["files", pytest.param("command", marks=pytest.mark.long), "sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same store once more, as another process would."""
    match request.param:
        case "files":
            yield lambda: FileSecrets.open(tmp_path / "kept")
        case "command":
            (tmp_path / "kept").mkdir()
            command = f"{sys.executable} -S {MANAGER} {tmp_path / 'kept'}"
            yield lambda: open_secrets(settings_of(tmp_path, place=SecretPlace.COMMAND, command=command), NO_STATE)
        case kind:
            with ExitStack() as stack:
                url = f"sqlite:{tmp_path / 'state.db'}"
                if kind == "postgres":
                    url = stack.enter_context(request.getfixturevalue("state_pool").borrowed())
                state = stack.enter_context(opened(url, Clock()))
                yield lambda: database(state)


def settings_of(directory: Path, **secrets: Any) -> Settings:
    return Settings(
        dispatcher=DispatcherSettings(secrets_dir=str(directory)), secrets=replace(SecretsSettings(), **secrets)
    )


# Every store


def test_what_one_process_writes_another_sees_after_a_refresh(opener: Opener) -> None:
    ours, other = opener(), opener()
    assert ours.create("webhook-a", b"one\n")
    assert not other.create("webhook-a", b"two\n")
    other.refresh(at_once=True)
    assert other.read("webhook-a") == b"one\n"
    assert not other.replace("webhook-a", b"two\n", b"three\n")
    assert other.replace("webhook-a", b"one\n", b"two\n")
    assert ours.create("key-1", b"k")
    ours.refresh(at_once=True)
    assert ours.read("webhook-a") == b"two\n"
    assert (list(ours.entries(WEBHOOKS)), list(ours.entries(KEYS))) == (["webhook-a"], ["key-1"])
    assert [each.name for each in ours.list_secrets(WEBHOOKS)] == ["webhook-a"]
    other.delete("webhook-a")
    other.delete("webhook-a")
    ours.refresh(at_once=True)
    assert ours.read("webhook-a") is None
    assert dict(ours.entries(WEBHOOKS)) == {}


def test_a_secret_that_is_written_again_is_noticed_under_the_same_name(opener: Opener) -> None:
    ours, other = opener(), opener()
    ours.create("webhook-a", b"one\n")
    other.refresh(at_once=True)
    before = other.read("webhook-a"), dict(other.entries(WEBHOOKS))
    ours.delete("webhook-a")
    ours.create("webhook-a", b"two\n")
    other.refresh(at_once=True)
    assert before[0] == b"one\n"
    assert other.read("webhook-a") == b"two\n"


def test_of_many_that_start_at_once_one_makes_the_first_key(opener: Opener) -> None:
    stores = [opener() for _ in range(4)]
    barrier = threading.Barrier(4)

    def start(store: SecretStore) -> str:
        barrier.wait(30)
        return KeyRing.open(store).jwks()["keys"][0]["kid"]

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(start, stores))) == 1
    assert list(opener().entries(KEYS)) == [FIRST]


def test_a_token_of_one_dispatcher_is_valid_at_another_before_and_after_a_rotation(opener: Opener) -> None:
    ours, other = KeyRing.open(opener()), KeyRing.open(opener())
    before = issue(ours)
    capabilities.verify(other, before, NOW)
    new = ours.rotate(NOW)
    later = NOW + OVERLAP + timedelta(seconds=1)
    after = issue(ours, now=later)
    assert jwt.get_unverified_header(after)["kid"] == new
    other.secrets.refresh(at_once=True)
    capabilities.verify(other, after, later)
    capabilities.verify(other, before, NOW + timedelta(minutes=5))
    assert [each.use for each in other.list_keys(later)] == ["verifies", "signs"]
    assert [each["kid"] for each in other.jwks(later + TOKEN_TTL_MAX)["keys"]] == [new]


def test_two_that_rotate_get_one_key_and_one_signs(opener: Opener) -> None:
    rings = [KeyRing.open(opener()) for _ in range(3)]
    moments = [NOW + timedelta(seconds=at) for at in (0, 1, 100)]
    assert len({ring.rotate(now) for ring, now in zip(rings, moments, strict=True)}) == 1
    last = KeyRing.open(opener())
    for at in (NOW, NOW + OVERLAP + timedelta(minutes=1)):
        assert [each.use for each in last.list_keys(at)].count("signs") == 1
    assert len(last.list_keys(NOW)) == 2


def test_an_urgent_rotation_does_not_wait_for_one_that_is_under_way(opener: Opener) -> None:
    ring = KeyRing.open(opener())
    slow, urgent = ring.rotate(NOW), ring.rotate(NOW, urgent=True)
    assert slow != urgent
    soon = NOW + URGENT_OVERLAP + timedelta(seconds=1)
    assert [each.kid for each in ring.list_keys(soon) if each.use == "signs"] == [urgent]


def test_a_revoked_key_verifies_nothing_and_another_signs_at_once(opener: Opener) -> None:
    ours, other = KeyRing.open(opener()), KeyRing.open(opener())
    token = issue(ours)
    leaked = ours.list_keys(NOW)[0].kid
    new = ours.revoke(leaked, NOW)
    other.secrets.refresh(at_once=True)
    for ring in (ours, other):
        with pytest.raises(UnknownKey):
            capabilities.verify(ring, token, NOW)
    assert [(each.kid, each.use) for each in other.list_keys(NOW)] == [(new, "signs")]
    capabilities.verify(other, issue(ours), NOW)
    with pytest.raises(NotFound, match="qo key list"):
        ours.revoke(leaked, NOW)


def test_the_secret_of_a_webhook_is_changed_without_a_pause(opener: Opener) -> None:
    ours, other = opener(), opener()

    def valid() -> list[bytes]:
        other.refresh(at_once=True)
        return webhook_secrets.read_secrets(other, "shop")

    first = webhook_secrets.set_secret(ours, "shop")
    assert valid() == [first]
    second = webhook_secrets.rotate_secret(ours, "shop", b"of the sender's own\n")
    assert valid() == [first, second] == [first, b"of the sender's own"]
    with pytest.raises(Refused, match="retire shop"):
        webhook_secrets.rotate_secret(ours, "shop")
    assert webhook_secrets.retire_secrets(ours, "shop") == 1
    assert webhook_secrets.retire_secrets(ours, "shop") == 0
    assert valid() == [second]
    third = webhook_secrets.set_secret(ours, "shop")
    assert valid() == [third]
    (listed,) = webhook_secrets.list_webhooks(ours)
    assert (listed.name, listed.valid) == ("shop", 1)
    webhook_secrets.remove_secrets(ours, "shop")
    assert valid() == []
    for change in (
        webhook_secrets.rotate_secret,
        webhook_secrets.retire_secrets,
        webhook_secrets.remove_secrets,
    ):
        with pytest.raises(NotFound, match="qo source secret set shop"):
            change(ours, "shop")


@pytest.mark.parametrize("value", [b"short", b"", b"two lines\nof a secret", b"x" * 1001])
def test_a_secret_that_cannot_be_one_is_not_stored_and_not_repeated(value: bytes, tmp_path: Path) -> None:
    secrets = FileSecrets.open(tmp_path / "kept")
    with pytest.raises(UsageError, match="one line of 8 to 1000 characters") as caught:
        webhook_secrets.set_secret(secrets, "shop", value)
    assert value == b"" or value.decode() not in str(caught.value)
    assert webhook_secrets.list_webhooks(secrets) == []


def test_a_file_of_a_secret_that_is_written_again_stays_private(tmp_path: Path) -> None:
    secrets = FileSecrets.open(tmp_path / "kept")
    webhook_secrets.set_secret(secrets, "shop")
    webhook_secrets.rotate_secret(secrets, "shop")
    (file,) = (tmp_path / "kept").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


# In the database


def rows(state: State) -> list[dict[str, object]]:
    with state.read() as tx:
        return [dict(row) for row in tx.all(sa.select(schema.secrets).order_by(schema.secrets.c.name))]


def test_the_database_holds_nothing_that_could_be_used_without_the_key(state: State) -> None:
    secrets = database(state)
    KeyRing.open(secrets)
    webhook_secrets.set_secret(secrets, "shop", CANARY.encode())
    stored = str(rows(state))
    assert CANARY not in stored
    assert "PRIVATE" not in stored
    assert stored.count("sealed:v1:k1:") == 2


def test_a_row_that_was_moved_or_changed_is_refused(state: State) -> None:
    secrets = database(state)
    secrets.create("webhook-a", b"one of a\n")
    secrets.create("webhook-b", b"one of b\n")
    sealed = {str(row["name"]): row["sealed"] for row in rows(state)}
    for name, text in (("webhook-a", sealed["webhook-b"]), ("webhook-b", "one of b\n")):
        with state.write() as tx:
            this = schema.secrets.c.name == name
            tx.execute(sa.update(schema.secrets).where(this).values(sealed=text, revision="other"))
        secrets.refresh(at_once=True)
        with pytest.raises(CorruptRecord):
            secrets.read(name)
        (listed,) = [each for each in webhook_secrets.list_webhooks(secrets) if f"webhook-{each.name}" == name]
        assert listed.valid is None


def test_a_key_that_is_missing_or_wrong_is_named_before_anything_is_served(state: State) -> None:
    KeyRing.open(database(state))
    with pytest.raises(Refused, match=r"encrypted with key k1, .* secrets\.key_file .* restored from a backup"):
        KeyRing.open(database(state, K2))
    wrong = f"k1:{K2.partition(':')[2]}"
    with pytest.raises(CorruptRecord, match=r"does not decrypt with key k1: .* another one of the same id"):
        KeyRing.open(database(state, wrong))
    with pytest.raises(ConfigError, match=r"qo key generate ID, and set secrets\.key_file"):
        open_database_secrets(SecretsSettings(), state)


def test_a_file_of_keys_that_others_can_read_is_refused(state: State, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(K1)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        open_database_secrets(SecretsSettings(key_file=str(path)), state)


def test_the_key_that_encrypts_is_replaced_while_dispatchers_run(state: State, tmp_path: Path) -> None:
    path = tmp_path / "keys"

    def write(*keys: str) -> None:
        path.write_text("\n".join(keys))
        path.chmod(0o600)

    write(K1)
    settings = SecretsSettings(key_file=str(path))
    running = KeyRing.open(open_database_secrets(settings, state))
    webhook_secrets.set_secret(running.secrets, "shop", CANARY.encode())
    token = issue(running)
    write(K1, K2)
    write(K2, K1)
    admin = open_database_secrets(settings, state)
    assert admin.rewrap() == [FIRST, "webhook-shop"]
    assert admin.rewrap() == []
    assert {row["sealed_with"] for row in rows(state)} == {"k2"}
    write(K2)
    running.secrets.refresh(at_once=True)
    capabilities.verify(running, token, NOW)
    assert webhook_secrets.read_secrets(running.secrets, "shop") == [CANARY.encode()]
    capabilities.verify(KeyRing.open(database(state, K2)), token, NOW)


def test_a_rewrap_that_ends_midway_has_changed_nothing(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = database(state)
    webhook_secrets.set_secret(secrets, "a")
    webhook_secrets.set_secret(secrets, "b")
    before, seal = rows(state), Sealer.seal

    def killed_at_the_second(self: Sealer, body: bytes, owner: str, field: str) -> str:
        if owner == "webhook-b":
            raise KeyboardInterrupt
        return seal(self, body, owner, field)

    both = database(state, f"{K2},{K1}")
    with monkeypatch.context() as broken:
        broken.setattr(Sealer, "seal", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            both.rewrap()
    assert rows(state) == before
    assert both.rewrap() == ["webhook-a", "webhook-b"]
    assert [row["changed_at"] for row in rows(state)] == [row["changed_at"] for row in before]


def test_a_running_dispatcher_goes_on_with_the_keys_that_it_can_read(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    running = KeyRing.open(database(state))
    token = issue(running)
    KeyRing.open(database(state, f"{K2},{K1}")).rotate(NOW)
    running.secrets.refresh(at_once=True)
    capabilities.verify(running, token, NOW)
    assert "encrypted with key k2, which this process does not have" in caplog.text


def test_whoever_sends_nonsense_makes_nobody_ask_the_database(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = database(state)
    asked: list[None] = []
    load_rows = DatabaseSecrets._load_rows

    def counted(self: DatabaseSecrets) -> object:
        asked.append(None)
        return load_rows(self)

    monkeypatch.setattr(DatabaseSecrets, "_load_rows", counted)
    monkeypatch.setattr(database_secrets, "REFRESH_MIN_S", 3600.0)
    for _ in range(50):
        secrets.refresh()
        secrets.read("webhook-a")
        secrets.entries(KEYS)
    assert asked == []
    monkeypatch.setattr(database_secrets, "REFRESH_MIN_S", 0.0)
    secrets.refresh()
    assert asked == [None]


# The choice


def test_secrets_are_in_files_unless_postgres_and_a_key_are_there(state: State, tmp_path: Path) -> None:
    chosen = open_secrets(settings_of(tmp_path / "s", keys=K1), state)
    on_postgres = state.engine.dialect.name == "postgresql"
    assert isinstance(chosen, DatabaseSecrets if on_postgres else FileSecrets)
    assert isinstance(open_secrets(settings_of(tmp_path / "s"), state), FileSecrets)
    explicit = settings_of(tmp_path / "s", keys=K1, place=SecretPlace.DATABASE)
    assert isinstance(open_secrets(explicit, state), DatabaseSecrets)
    with pytest.raises(ConfigError, match=r"needs secrets\.command"):
        open_secrets(settings_of(tmp_path / "s", place=SecretPlace.COMMAND), state)


def test_a_dispatcher_without_the_key_does_not_start_beside_others_that_have_it(
    state: State, tmp_path: Path
) -> None:
    KeyRing.open(database(state))
    with pytest.raises(ConfigError, match=r"encrypted with key k1, and this process would use files"):
        open_secrets(settings_of(tmp_path / "s"), state)


# From files


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "files"
    KeyRing.open(directory).rotate(NOW)
    webhook_secrets.set_secret(FileSecrets(directory), "shop", CANARY.encode())
    (directory / "admin.token").write_text("qo_not-to-be-moved\n")
    return directory


def test_the_first_with_a_key_moves_the_files_into_an_empty_database_and_later_ones_do_not(
    state: State, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = issue(KeyRing.open(files))
    settings = settings_of(files, keys=K1, place=SecretPlace.DATABASE)
    secrets = open_secrets(settings, state)
    capabilities.verify(KeyRing.open(secrets), token, NOW)
    assert webhook_secrets.read_secrets(secrets, "shop") == [CANARY.encode()]
    assert [row["name"] for row in rows(state)] == [*sorted(FileSecrets(files).entries(KEYS)), "webhook-shop"]
    assert f"from {files} into the state database" in caplog.text
    webhook_secrets.remove_secrets(secrets, "shop")
    caplog.clear()
    again = open_secrets(settings, state)
    assert webhook_secrets.read_secrets(again, "shop") == []
    assert caplog.text == ""


def test_an_import_may_be_killed_and_repeated_and_loses_nothing(
    state: State, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted([*FileSecrets(files).entries(KEYS), "webhook-shop"])
    secrets = database(state)
    with monkeypatch.context() as broken:

        def killed(self: FileSecrets, name: str) -> None:
            raise KeyboardInterrupt

        broken.setattr(FileSecrets, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            import_files(secrets, files, remove=True)
    assert sorted(each.name for each in files.iterdir()) == sorted([*names, "admin.token"])
    result = import_files(secrets, files)
    assert (result.created, result.present, result.different) == ([], names, [])
    contents = {name: (files / name).read_bytes() for name in names}
    import_files(secrets, files, remove=True)
    assert [each.name for each in files.iterdir()] == ["admin.token"]
    again = database(state)
    assert {name: again.read(name) for name in names} == contents


def test_an_import_keeps_what_the_database_has_under_the_same_name(state: State, files: Path) -> None:
    secrets = database(state)
    own = webhook_secrets.set_secret(secrets, "shop")
    result = import_files(secrets, files, remove=True)
    assert result.different == ["webhook-shop"]
    assert webhook_secrets.read_secrets(secrets, "shop") == [own]
    assert (files / "webhook-shop").exists()


# A command


@pytest.mark.parametrize(
    ("command", "error"),
    [("", "is no command"), ("/nowhere/at-all", "cannot be run"), (f"{sys.executable} -c 1/0", "exit code 1")],
)
def test_a_secret_manager_that_does_not_work_is_named(command: str, error: str) -> None:
    with pytest.raises(QoError, match=error):
        CommandSecrets(command).refresh(at_once=True)


def test_a_secret_manager_is_asked_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(self: CommandSecrets, action: str, name: str = "", content: bytes = b"") -> bytes:
        calls.append(action)
        return b""

    monkeypatch.setattr(CommandSecrets, "_run", counted)
    manager = CommandSecrets("anything")
    for _ in range(20):
        manager.refresh()
        manager.entries(KEYS)
    assert calls == ["list"]
    assert URGENT_OVERLAP.total_seconds() > command_secrets.REFRESH_MIN_S


@pytest.mark.long
def test_the_command_of_the_guide_keeps_secrets_in_aws(
    tmp_path: Path, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/security.md").read_text()
    source = re.search(r"^```python\n(# qo_secrets\.py\n.*?)^```$", guide, re.M | re.S)
    assert source is not None
    (tmp_path / "qo_secrets.py").write_text(source[1])
    for name, value in {
        "AWS_ENDPOINT_URL": moto_server.endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }.items():
        monkeypatch.setenv(name, value)
    ours, other = (CommandSecrets(f"{sys.executable} {tmp_path / 'qo_secrets.py'}") for _ in range(2))
    first = KeyRing.open(ours)
    token = issue(first)
    capabilities.verify(KeyRing.open(other), token, NOW)
    assert ours.create("webhook-shop", b"one\n")
    assert not other.create("webhook-shop", b"two\n")
    assert other.read("webhook-shop") == b"one\n"
    assert other.replace("webhook-shop", b"one\n", b"two\n")
    ours.refresh(at_once=True)
    assert ours.read("webhook-shop") == b"two\n"
    assert list(ours.entries(KEYS)) == [FIRST]
    ours.delete("webhook-shop")
    ours.delete("webhook-shop")
    other.refresh(at_once=True)
    assert other.read("webhook-shop") is None
