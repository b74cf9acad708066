"""Payloads encrypted with a key of the user's: nobody without it reads them, moves them, or stops the queue."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

import qo
from qo.config.encryption import EncryptionSettings
from qo.config.origins import load
from qo.core import keys, wire
from qo.core.sealed import PREFIX, describe_sealed, is_sealed, parse_sealed
from qo.core.task import Status
from qo.core.uniqueness import Unique, identity
from qo.errors import ConfigError, CorruptRecord, IdempotencyConflict, Refused, UsageError
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.schedules import Schedules
from qo.queue.sealer import KeyRing, Sealer, open_sealer, parse_keys
from qo.store.memory import MemoryStore
from qo.worker.api.app import App
from qo.worker.api.context import Context
from support.stores.queues import another, claimed, drain, hasty, keys_under

K1, K2 = bytes(range(32)), bytes(range(32, 64))
SECRET = "the patient's name"


def sealer(*ids: str, required: bool = False) -> Sealer:
    return Sealer(KeyRing({name: {"k1": K1, "k2": K2}[name] for name in ids}), required=required)


@pytest.fixture
def sealed(queue: Queue) -> Queue:
    """The queue of every store, with a key."""
    return another(queue, sealer=sealer("k1"))


async def stored_bytes(queue: Queue) -> bytes:
    """Everything that lies in the bucket, in every version of it."""
    bodies: list[bytes] = []
    for entry in (await queue.store.list("")).entries:
        bodies.append(entry.key.encode())
        for version in await queue.store.versions(entry.key):
            stored = await queue.store.get(entry.key, version=version.version)
            bodies += [] if stored is None else [stored.body]
        stored = await queue.store.get(entry.key)
        bodies += [] if stored is None else [stored.body]
    return b"\n".join(bodies)


def echo_app() -> App:
    app = App()

    @app.task("echo")
    async def echo(input: Any, ctx: Context) -> Any:
        ctx.progress({"at": SECRET})
        return input

    @app.task("boom")
    async def boom(input: Any) -> None:
        raise qo.Reject(f"cannot find {input}") from ValueError(input)

    return app


@pytest.mark.parametrize("size", [1, 5_000], ids=["inline", "apart"])
async def test_nothing_of_the_users_is_readable_in_the_bucket_and_everything_with_the_key(
    queue: Queue, size: int
) -> None:
    sealed = another(queue, sealer=sealer("k1"), payload_threshold_bytes=1_000)
    done = await sealed.submit("echo", {"name": SECRET * size})
    failed = await sealed.submit("boom", SECRET)
    assert done.input in ({"name": SECRET * size}, f"{PREFIX}k1:")
    await drain(sealed, echo_app())
    done, failed = await sealed.get(done.id), await sealed.get(failed.id)
    assert await sealed.input(done) == await sealed.output(done) == {"name": SECRET * size}
    assert done.progress == {"at": SECRET}
    assert failed.last_error == f"cannot find {SECRET}"
    assert SECRET in (failed.traceback or "")
    assert SECRET.encode() not in await stored_bytes(queue)
    assert [task.progress for task in await sealed.list(task_type="echo")] == [{"at": SECRET}]
    history = await sealed.history(failed.id)
    assert history[-1].last_error == f"cannot find {SECRET}"


async def test_without_the_key_a_reader_sees_that_it_is_encrypted_and_by_which_key(sealed: Queue) -> None:
    task = await sealed.submit("echo", SECRET)
    await drain(sealed, echo_app())
    seen = await another(sealed).get(task.id)
    assert describe_sealed(seen.input) == describe_sealed(seen.output) == "encrypted with key k1"
    assert seen.status is Status.COMPLETED
    with pytest.raises(Refused, match="encrypted with key k1, which this process does not have"):
        await another(sealed).input(seen)


async def test_a_worker_without_the_key_leaves_such_tasks_to_others(
    sealed: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    task = await sealed.submit("echo", SECRET)
    plain = await another(sealed).submit("echo", "for everybody")
    stats = await drain(another(sealed), echo_app())
    assert (stats.claimed, stats.completed) == (1, 1)
    assert (await sealed.get(plain.id)).status is Status.COMPLETED
    assert ((await sealed.get(task.id)).status, (await sealed.get(task.id)).attempt) == (Status.PENDING, 0)
    assert any("encrypted with key k1, which this worker does not have" in line for line in caplog.messages)
    await drain(another(sealed, sealer=sealer("k1")), echo_app())
    assert (await sealed.get(task.id)).output == SECRET


async def test_the_name_of_a_unique_task_tells_nothing_without_the_key(sealed: Queue) -> None:
    once = Options(unique=Unique())
    first = await sealed.submit("echo", SECRET, once)
    guessed = keys.unique(identity(Unique(), "echo", SECRET))
    (name,) = await keys_under(sealed.store, keys.UNIQUE)
    assert name != guessed
    again = await another(sealed, sealer=sealer("k1")).submit_or_find("echo", SECRET, once)
    assert (again.task.id, again.created) == (first.id, False)


async def test_unique_tasks_of_another_key_or_of_none_still_count(sealed: Queue) -> None:
    once = Options(unique=Unique())
    plain = await another(sealed).submit("echo", 1, once)
    assert (await sealed.submit("echo", 1, once)).id == plain.id
    old = await sealed.submit("echo", 2, once)
    rotated = another(sealed, sealer=sealer("k2", "k1"))
    assert (await rotated.submit("echo", 2, once)).id == old.id
    await sealed.cancel(old.id)
    new = await rotated.submit("echo", 2, once)
    assert new.id != old.id, "what was cancelled stands for nothing, whatever its name"
    assert (await another(sealed, sealer=sealer("k2")).submit("echo", 2, once)).id == new.id


async def test_operators_and_monitors_need_no_key(sealed: Queue) -> None:
    options = Options(max_retries=0, on_failure="alert")
    task = await sealed.submit("echo", SECRET, options)
    keyless = another(sealed)
    await keyless.cancel(task.id)
    await keyless.replay(task.id)
    await sealed.fail(await claimed(sealed, task.id), f"no {SECRET}")
    await Monitor(keyless).check()
    await keyless.archive(task.id)
    await keyless.unarchive(task.id)
    await keyless.replay(task.id)
    assert await sealed.input(await sealed.get(task.id)) == SECRET


async def test_what_follows_a_failure_has_the_error_only_if_its_submitter_has_the_key(sealed: Queue) -> None:
    task = await sealed.submit("echo", SECRET, Options(max_retries=0, on_failure="alert"))
    await sealed.fail(await claimed(sealed, task.id), f"no {SECRET}")
    (alert,) = await sealed.list(task_type="alert")
    assert alert.input["error"] == f"no {SECRET}"
    assert SECRET.encode() not in await stored_bytes(sealed)


async def test_keys_rotate_the_first_encrypts_and_all_decrypt(sealed: Queue) -> None:
    old = await sealed.submit("echo", "old")
    rotated = another(sealed, sealer=sealer("k2", "k1"))
    new = await rotated.submit("echo", "new")
    for task, key_id in ((old, "k1"), (new, "k2")):
        stored = (await another(sealed).get(task.id)).input
        parts = parse_sealed(stored)
        assert parts is not None
        assert parts.key_id == key_id
    await drain(rotated, echo_app())
    assert [(await rotated.get(task.id)).output for task in (old, new)] == ["old", "new"]


async def test_an_idempotency_key_still_tells_the_same_input_from_another(sealed: Queue) -> None:
    options = Options(key="order-7")
    first = await sealed.submit("echo", {"a": 1, "b": 2}, options)
    rotated = another(sealed, sealer=sealer("k2", "k1"))
    assert (await rotated.submit("echo", {"b": 2, "a": 1}, options)).id == first.id
    with pytest.raises(IdempotencyConflict):
        await rotated.submit("echo", {"a": 2}, options)


@pytest.mark.fast
async def test_a_large_input_under_a_key_is_stored_once_under_a_name_that_betrays_nothing() -> None:
    queue = Queue(MemoryStore(), sealer=sealer("k1"), payload_threshold_bytes=10)
    for _ in range(3):
        task = await queue.submit("echo", "x" * 100, Options(key="k"))
    page = await queue.store.list(keys.DATA)
    (entry,) = page.entries
    plain = Queue(MemoryStore(), payload_threshold_bytes=10)
    other = await plain.submit("echo", "x" * 100, Options(key="k"))
    assert task.id == other.id
    assert entry.key != (await plain.get(other.id)).input_ref, "the name of a plain input confirms a guess at it"


@pytest.mark.fast
@pytest.mark.parametrize("field", ["input", "output"])
async def test_a_value_that_was_changed_or_moved_from_another_task_is_refused(field: str) -> None:
    store = MemoryStore()
    queue = Queue(store, sealer=sealer("k1"))
    mine, theirs = await queue.submit_many([NewTask("echo", "mine"), NewTask("echo", "theirs")])
    raw = {task.id: await read_raw(queue, task.id) for task in (mine, theirs)}
    forged = {**raw[mine.id], field: raw[theirs.id]["input"]}
    await store.put(keys.task(mine.shard, mine.id), msgspec.json.encode(forged))
    task = await Queue(store).get(mine.id)
    with pytest.raises(CorruptRecord, match=f"the {field} of {mine.id} does not decrypt"):
        await (queue.input(task) if field == "input" else queue.output(task))
    assert is_sealed(getattr(await queue.get(mine.id), field)), "who only looks is not stopped by it"


async def read_raw(queue: Queue, task_id: str) -> dict[str, Any]:
    stored = await queue.store.get(queue.tasks.key(task_id))
    assert stored is not None
    return msgspec.json.decode(stored.body)


@pytest.mark.fast
async def test_where_encryption_is_required_a_plain_input_is_not_run() -> None:
    store = MemoryStore()
    strict = Queue(store, sealer=sealer("k1", required=True), ambient=hasty())
    forged = await Queue(store).submit("echo", "by somebody without the key", Options(max_retries=0))
    empty = await Queue(store).submit("echo", None)
    good = await strict.submit("echo", "mine")
    await drain(strict, echo_app())
    assert "is not encrypted, and encryption.required is set" in ((await strict.get(forged.id)).last_error or "")
    assert (await strict.get(good.id)).output == "mine"
    assert (await strict.get(empty.id)).status is Status.COMPLETED, "nothing is nobody's secret"


@pytest.mark.fast
async def test_where_encryption_is_required_a_plain_result_does_not_reach_a_dependent() -> None:
    store = MemoryStore()
    strict = Queue(store, sealer=sealer("k1", required=True), ambient=hasty())
    app = echo_app()

    @app.task("join")
    async def join(input: Any, ctx: Context) -> Any:
        return await ctx.results()

    first = await strict.submit("echo", "mine")
    await drain(strict, app)
    snapshot = await strict.tasks.load(first.id)
    assert snapshot is not None
    forged = msgspec.structs.replace(snapshot.task, output="by somebody without the key")
    await store.put(strict.tasks.key(first.id), wire.encode(forged))
    joined = await strict.submit("join", None, Options(depends_on=[first.id], max_retries=0))
    await drain(strict, app)
    task = await strict.get(joined.id)
    assert (task.status, task.output) == (Status.FAILED, None)
    assert "encryption.required is set" in (task.last_error or "")


@pytest.mark.fast
async def test_where_encryption_is_required_a_plain_schedule_is_not_run_nor_encrypted_by_others() -> None:
    store = MemoryStore()
    strict = Schedules(Queue(store, sealer=sealer("k1", required=True)))
    await Schedules(Queue(store)).create("forged", task_type="echo", cron="* * * * *", input="without the key")
    for act in (strict.trigger, strict.disable, strict.enable):
        with pytest.raises(Refused, match="is not encrypted"):
            await act("forged")
    await strict.update("forged", input="mine")
    await strict.trigger("forged")


@pytest.mark.fast
async def test_a_value_that_only_begins_as_an_encrypted_one_is_not_taken_for_a_plain_one() -> None:
    store = MemoryStore()
    strict = Queue(store, sealer=sealer("k1", required=True), ambient=hasty())
    task = await strict.submit("echo", "mine", Options(max_retries=0))
    snapshot = await strict.tasks.load(task.id)
    assert snapshot is not None
    forged = msgspec.structs.replace(snapshot.task, input=f"{PREFIX}; rm -rf /")
    await store.put(strict.tasks.key(task.id), wire.encode(forged))
    await drain(strict, echo_app())
    assert (await strict.get(task.id)).status is Status.FAILED


@pytest.mark.fast
async def test_the_name_of_a_unique_task_confirms_no_guess_of_its_input() -> None:
    once = Options(unique=qo.Unique())
    names: list[str] = []
    for each in (None, sealer("k1"), sealer("k2")):
        queue = Queue(MemoryStore(), sealer=each)
        first = await queue.submit_or_find("charge", {"card": "4111"}, once)
        second = await queue.submit_or_find("charge", {"card": "4111"}, once)
        assert (second.created, second.task.id) == (False, first.task.id)
        names += [entry.key for entry in (await queue.store.list(keys.UNIQUE)).entries]
    assert len(set(names)) == 3


@pytest.mark.fast
async def test_a_value_that_looks_encrypted_is_refused_and_an_error_that_does_is_not_mistaken() -> None:
    queue = Queue(MemoryStore())
    with pytest.raises(UsageError, match="marks encrypted values"):
        await queue.submit("echo", f"{PREFIX}k1:AAAA")
    task = await queue.submit("echo", "fine")
    failed = await queue.fail(await claimed(queue, task.id), f"{PREFIX}k1:AAAA")
    assert describe_sealed(failed.last_error) is None


async def test_the_input_of_a_schedule_is_encrypted_too(sealed: Queue) -> None:
    schedules = Schedules(sealed)
    await schedules.create("nightly", task_type="echo", cron="* * * * *", input={"name": SECRET})
    assert SECRET.encode() not in await stored_bytes(sealed)
    assert (await schedules.get("nightly")).input == {"name": SECRET}
    assert is_sealed((await Schedules(another(sealed)).get("nightly")).input)
    await Schedules(another(sealed)).disable("nightly")
    await schedules.enable("nightly")
    task = await schedules.trigger("nightly")
    assert await sealed.input(await sealed.get(task.id)) == {"name": SECRET}


def text_of(key: bytes) -> str:
    return base64.b64encode(key).decode()


@pytest.mark.fast
def test_keys_come_from_settings_a_file_or_a_function(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text(f"# made in November\nk2:{text_of(K2)}\nk1:{text_of(K1)}\n")
    (tmp_path / "my_keys.py").write_text(
        "import base64\n"
        f"def from_service(): return {{'k2': base64.b64decode('{text_of(K2)}')}}\n"
        f"def as_text(): return 'k2:{text_of(K2)}'\n"
        "def wrong(): return 7\n"
        "def broken(): raise OSError('no route to the service')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "keys").chmod(0o644)
    with pytest.raises(ConfigError, match="open to other users: chmod 600"):
        open_sealer(EncryptionSettings(key_file=str(tmp_path / "keys")))
    (tmp_path / "keys").chmod(0o600)
    for settings in (
        EncryptionSettings(keys=f"k2:{text_of(K2)},k1:{text_of(K1)}"),
        EncryptionSettings(key_file=str(tmp_path / "keys")),
        EncryptionSettings(keys_from="my_keys:from_service"),
        EncryptionSettings(keys_from="my_keys:as_text"),
    ):
        found = open_sealer(settings)
        assert found is not None
        parts = parse_sealed(found.seal(b"1", "t", "input"))
        assert parts is not None
        assert parts.key_id == "k2"
    assert open_sealer(EncryptionSettings()) is None
    for name, message in (("wrong", "must return the keys"), ("broken", "no route"), ("none", "AttributeError")):
        with pytest.raises(ConfigError, match=message):
            open_sealer(EncryptionSettings(keys_from=f"my_keys:{name}"))
    with pytest.raises(ConfigError, match="cannot be read"):
        open_sealer(EncryptionSettings(key_file=str(tmp_path / "nowhere")))


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no encryption key"),
        ("k1", "number 1 is not ID:BASE64"),
        (f"k1:{text_of(K1)},k2:###", "number 2 is not ID:BASE64"),
        (f"k1:{text_of(K1[:16])}", "16 bytes instead of 32"),
        (f"k1:{text_of(K1)},k1:{text_of(K2)}", "two encryption keys k1"),
        (f"a b:{text_of(K1)}", "cannot name a key"),
    ],
)
def test_a_key_that_is_none_is_refused_without_showing_it(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        parse_keys(text)
    assert text_of(K1) not in str(refused.value)


@pytest.mark.fast
async def test_a_key_that_a_handler_prints_is_not_in_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QO_ENCRYPTION_KEYS", f"k2:{text_of(K2)},k1:{text_of(K1)}")
    queue, app = Queue(MemoryStore(), ambient=hasty()), App()

    @app.task("leak")
    async def leak(input: Any) -> None:
        raise ValueError(f"{text_of(K1)} and {text_of(K2)}")

    task = await queue.submit("leak", options=Options(max_retries=0))
    await drain(queue, app)
    error = (await queue.get(task.id)).last_error or ""
    assert error == "ValueError: (hidden) and (hidden)"


@pytest.mark.fast
def test_sources_of_keys_exclude_each_other_and_required_needs_one() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        load({"encryption.keys": f"k1:{text_of(K1)}", "encryption.key_file": "keys"}, environ={})
    with pytest.raises(ConfigError, match="needs keys"):
        open_sealer(EncryptionSettings(required=True))


@pytest.mark.fast
async def test_a_task_written_before_keys_were_set_is_still_read() -> None:
    store = MemoryStore()
    task = await Queue(store).submit("echo", {"old": True})
    with_key = Queue(store, sealer=sealer("k1"), ambient=hasty())
    await drain(with_key, echo_app())
    assert (await with_key.get(task.id)).output == {"old": True}
    assert wire.fingerprint((await with_key.get(task.id)).input) == wire.fingerprint({"old": True})
