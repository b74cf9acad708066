"""Keys can be read back, values survive their bytes, and no bytes whatever do worse than a clear error."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qo.core import keys, shard, wire
from qo.core.task import FORMAT, PRIORITY_MAX, RetryPolicy, Status, Task
from qo.errors import CorruptRecord, UsageError

pytestmark = pytest.mark.fast
CALM = settings(deadline=None)  # A slow machine is not a broken law.

ids = st.uuids(version=4).map(str)
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
instants = st.integers(0, 180 * 365 * 86_400_000_000).map(lambda us: EPOCH + timedelta(microseconds=us))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tasks = st.builds(
    Task,
    id=ids,
    task_type=texts,
    shard=st.sampled_from(shard.all_shards(1)),
    status=st.sampled_from(Status),
    token=texts,
    available_at=instants,
    expires_at=st.none() | instants,
    priority=st.integers(0, PRIORITY_MAX),
    lease_expires_at=st.none() | instants,
    input=values,
    input_ref=st.none() | texts,
    output=values,
    timeout_seconds=st.floats(0.001, 1e6),
    max_retries=st.integers(0, 1000),
    retry_policy=st.builds(RetryPolicy, multiplier=st.floats(1, 10)),
    max_reschedules=st.none() | st.integers(0, 10),
    created_at=instants,
    updated_at=instants,
    completed_at=st.none() | instants,
    worker_id=st.none() | texts,
    lease_id=st.none() | texts,
    attempt=st.integers(0, 2**40),
    last_error=st.none() | texts,
    cancel_requested=st.booleans(),
    archived_from=st.none() | st.sampled_from(Status),
    progress=values,
)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE = Task(
    id="a3f1c0de-0000-4000-8000-000000000001",
    task_type="work",
    shard="a",
    token="t",
    available_at=NOON,
    created_at=NOON,
    updated_at=NOON,
)
BODY = wire.encode(ONE)


# Keys and shards


def test_keys_are_spelled_as_documented() -> None:
    """They are a format: other versions of qo, and other programs, read them."""
    spelled = {
        keys.task("a", "ID"): "tasks/a/ID.json",
        keys.index(keys.READY, "a", 42, "ID"): "ready/a/0000000042/ID",
        keys.index(keys.READY, "a", 42, "ID", 52): "ready/a/0000000042.0000000052/ID",
        keys.index(keys.LEASES, "a", 42, "ID"): "leases/a/0000000042/ID",
        keys.output_data("a", "ID", 3): "data/a/ID/output-3.json",
        keys.worker("w1"): "workers/w1.json",
        keys.schedule("nightly"): "schedules/nightly.json",
    }
    assert list(spelled) == list(spelled.values())


@CALM
@given(ids, st.integers(1, shard.PREFIX_LEN_MAX))
def test_a_task_key_names_its_task(task_id: str, prefix_len: int) -> None:
    key = keys.task(shard.shard_of(task_id, prefix_len), task_id)
    assert key.startswith(keys.TASKS)
    assert keys.task_id_of(key) == task_id


@CALM
@given(st.sampled_from([keys.READY, keys.LEASES]), ids, instants)
def test_an_index_key_says_what_it_was_made_of(prefix: str, task_id: str, instant: datetime) -> None:
    minute = keys.minute_of(instant)
    key = keys.index(prefix, task_id[0], minute, task_id)
    assert keys.parse_index(key) == (task_id[0], minute, task_id, minute)
    later = keys.index(prefix, task_id[0], minute, task_id, minute + 7)
    assert keys.parse_index(later) == (task_id[0], minute, task_id, minute + 7)
    assert minute * 60 <= instant.timestamp() < (minute + 1) * 60


@CALM
@given(ids, instants, instants)
def test_index_keys_sort_by_time(task_id: str, one: datetime, other: datetime) -> None:
    early, late = sorted([one, other])
    first, second = (keys.index(keys.READY, "a", keys.minute_of(t), task_id) for t in (early, late))
    assert first <= second < f"{keys.READY}a/{keys.AFTER_ALL}"


@CALM
@given(tasks)
def test_a_tasks_own_index_key_leads_back_to_it(task: Task) -> None:
    key = keys.index_key(task)
    if key is not None:
        parsed = keys.parse_index(key)
        assert parsed is not None
        assert (parsed.shard, parsed.task_id) == (task.shard, task.id)


@CALM
@given(instants, st.integers(0, PRIORITY_MAX), st.timedeltas(timedelta(0), timedelta(hours=3)))
def test_priority_is_a_head_start_and_a_key_tells_when_its_task_is_due(
    written: datetime, priority: int, wait: timedelta
) -> None:
    task = msgspec.structs.replace(ONE, priority=priority, updated_at=written, available_at=written + wait)
    parsed = keys.parse_index(keys.ready_key(task))
    assert parsed is not None
    due = keys.minute_of(task.available_at)
    assert parsed.minute == due - priority * keys.PRIORITY_HEAD_START_MIN
    assert parsed.due_minute == (due if wait else parsed.minute), "what was due when it was written stays listed"


@CALM
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=30),
    st.integers(0, 40),
)
def test_listing_on_from_the_next_start_skips_nothing_that_is_due(
    places: list[tuple[str, int, int]], minute: int
) -> None:
    listed = sorted(
        keys.index(keys.READY, shard, due - 10 * priority if due > 30 else due, ONE.id, due)
        for shard, due, priority in places
        if due <= 30 or due >= 10 * priority
    )
    for key in listed:
        start = keys.next_start(keys.READY, key, minute)
        assert start >= key
        for skipped in listed:
            if key < skipped <= start:
                parsed = keys.parse_index(skipped)
                assert parsed is not None
                assert max(parsed.minute, parsed.due_minute) > minute


@CALM
@given(st.text(max_size=40))
@example("ready/a/00000000²1/x")
@example("tasks/a/x.json/y")
@example("")
def test_a_foreign_key_is_not_mistaken_and_does_no_harm(key: str) -> None:
    parsed = keys.parse_index(key)
    assert parsed is None or key.split("/")[1:] == [parsed.shard, key.split("/")[2], parsed.task_id]
    task_id = keys.task_id_of(key)
    assert task_id is None or key.startswith(keys.TASKS)


@CALM
@given(ids, st.integers(1, shard.PREFIX_LEN_MAX))
def test_every_id_has_exactly_one_shard_of_all(task_id: str, prefix_len: int) -> None:
    mine = shard.shard_of(task_id, prefix_len)
    assert shard.validate_shards((mine, mine), prefix_len) == (mine,)
    assert shard.validate_task_id(f" {task_id.upper()}\n") == task_id
    if prefix_len < 3:
        assert shard.all_shards(prefix_len).count(mine) == 1


@CALM
@given(st.text(max_size=40))
@example("../../queue")
@example("a3f1c0de-0000-4000-8000-00000000000/")
@example("a3f1c0de-0000-4000-8000-000000000001\nx")
def test_what_is_no_task_id_never_becomes_part_of_a_key(text: str) -> None:
    with pytest.raises(UsageError, match="not a task id"):
        shard.validate_task_id(text)


# Bytes


@CALM
@given(tasks)
def test_a_task_survives_its_bytes(task: Task) -> None:
    body = wire.encode(task)
    assert wire.decode_task(body, "k") == task
    assert wire.encode(wire.decode_task(body, "k")) == body


@CALM
@given(values)
def test_a_value_survives_its_bytes(value: Any) -> None:
    assert wire.decode_json(wire.payload(value, "input").body, "input") == value


@CALM
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
@example(b"")
@example(b"[" * 100_000)
@example(b'{"format":' + b"9" * 5000 + b"}")
def test_garbage_is_a_corrupt_record_and_nothing_worse(body: bytes) -> None:
    with pytest.raises(CorruptRecord, match=r"tasks/a/x\.json"):
        wire.decode_task(body, "tasks/a/x.json")


@CALM
@given(st.integers(0, len(BODY) - 1))
def test_a_truncated_task_is_a_corrupt_record(length: int) -> None:
    with pytest.raises(CorruptRecord):
        wire.decode_task(BODY[:length], "k")


@CALM
@given(st.integers(0, len(BODY) - 1), st.integers(0, 255))
def test_a_flipped_byte_is_a_corrupt_record_or_still_a_task(at: int, byte: int) -> None:
    body = BODY[:at] + bytes([byte]) + BODY[at + 1 :]
    with suppress(CorruptRecord):
        assert isinstance(wire.decode_task(body, "k"), Task)


@CALM
@given(st.sampled_from(sorted(json.loads(BODY))), values)
def test_a_field_of_another_kind_is_a_corrupt_record_or_still_a_task(field: str, value: Any) -> None:
    body = json.dumps({**json.loads(BODY), field: value}).encode()
    with suppress(CorruptRecord):
        assert isinstance(wire.decode_task(body, "k"), Task)


def test_a_record_without_a_required_field_is_corrupt() -> None:
    whole = json.loads(BODY)
    for field in ("id", "task_type", "shard", "token", "available_at", "created_at", "updated_at"):
        body = json.dumps({name: value for name, value in whole.items() if name != field}).encode()
        with pytest.raises(CorruptRecord, match=field):
            wire.decode_task(body, "k")


def test_a_time_without_an_offset_is_a_corrupt_record() -> None:
    """It would be read as somebody's local time and could not be compared with any other."""
    body = json.dumps({**json.loads(BODY), "available_at": "2026-03-01T12:00:00"}).encode()
    with pytest.raises(CorruptRecord, match="available_at"):
        wire.decode_task(body, "k")


@pytest.mark.parametrize("readable", [True, False])
def test_a_newer_format_is_refused_with_what_to_do(readable: bool) -> None:
    """Even one that looks familiar: its fields may mean something else by then."""
    newer = {**json.loads(BODY), "format": FORMAT + 1}
    if not readable:
        del newer["token"]
    with pytest.raises(CorruptRecord, match="Upgrade qo"):
        wire.decode_task(json.dumps(newer).encode(), "k")


def test_a_field_that_this_version_does_not_know_is_no_error() -> None:
    body = json.dumps({**json.loads(BODY), "colour": "green"}).encode()
    assert wire.decode_task(body, "k") == ONE


# Payloads


class Opaque:
    def __repr__(self) -> str:
        return "Opaque()"  # The same in every process that names tests by it.


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        {"deep": [{"er": -math.inf}]},
        {1, 2},
        {"tags": frozenset({"a"})},
        {1: "a"},
        {"a": {2.5: "b"}},
        {None: "a"},
        {True: "a"},
        {("a", "b"): 1},
        Opaque(),
        {"a": [Opaque()]},
        b"bytes",
        NOON,
        Decimal("1.5"),
        ONE,
        "\ud800",
        {"\udfff": 1},
    ],
    ids=repr,
)
def test_what_json_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UsageError, match="the input of resize"):
        wire.payload(value, "the input of resize")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="input"):
        wire.payload(loop, "input")


def test_a_tuple_is_taken_as_the_list_it_becomes() -> None:
    assert wire.payload({"size": (1, [2, (3,)])}, "input").body == b'{"size":[1,[2,[3]]]}'


@pytest.mark.parametrize("text", ["", "{", "nul", "1e999", "[1,]", "NaN", '"\\ud800"', b"\xff", b"[" * 100_000])
def test_text_that_is_not_json_is_a_usage_error(text: str | bytes) -> None:
    with pytest.raises(UsageError, match="--input is not valid JSON"):
        wire.decode_json(text, "--input")


@CALM
@given(st.dictionaries(texts, values, max_size=5), st.randoms(use_true_random=False))
def test_a_fingerprint_does_not_depend_on_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert wire.fingerprint({"in": dict(items)}) == wire.fingerprint({"in": value})


@CALM
@given(values, values)
def test_different_values_have_different_fingerprints(one: Any, other: Any) -> None:
    if one != other:
        assert wire.fingerprint(one) != wire.fingerprint(other)
