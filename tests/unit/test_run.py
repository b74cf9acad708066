"""What an operator sees: its inputs' committed files, and outputs that belong to its attempt alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from qo.agent.dataset_files import resolve_uri
from qo.agent.operator_run import Run
from qo.api.contract.task import (
    FILES_MAX,
    EventBody,
    Piece,
    PiecesAnswer,
    StandingAnswer,
    Work,
    WorkInput,
    WorkOutput,
)
from qo.errors import ConfigError, Forbidden, NotFound, UsageError
from qo.pipeline.operators.spark import PLACE
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken

pytestmark = pytest.mark.fast


def work(tmp_path: Path, **about: Any) -> Work:
    return Work(
        task_id="t",
        attempt=2,
        dag="shop",
        job="clean",
        version=1,
        runtime="python",
        operator="orders:clean",
        update_strategy="replace",
        outputs=[WorkOutput(index=0, dataset_id="d", generation_id="g", prefix=f"file:{tmp_path}/d/g/t/2/")],
        **about,
    )


def run_of(given: Work, pages: list[PiecesAnswer] | None = None, said: list[EventBody] | None = None) -> Run:
    waiting = list(pages or [])

    async def emit(events: list[EventBody]) -> bool:
        assert said is not None
        said.extend(events)
        return True

    def wait(call: Coroutine[Any, Any, bool]) -> bool:
        return asyncio.run(call)

    return Run(
        given,
        BlockingFiles(),
        cancel=CancelToken(),
        progress=lambda value: None,
        emit=emit,
        wait=wait,
        more=lambda given, after: waiting.pop(0),
        standing=lambda output, after, revision: StandingAnswer(pieces=[]),
        secrets_dir=Path(given.outputs[0].prefix.removeprefix("file:")).parents[3],
    )


@pytest.mark.parametrize(
    ("place", "uri"),
    [
        ("alerts", "file:/here/alerts"),
        ("./landing/*.csv", "file:/here/landing/*.csv"),
        ("file:alerts", "file:/here/alerts"),
        ("file:///data/a b", "file:/data/a b"),
        ("/data", "file:/data"),
        ("s3://lake/alerts", "s3://lake/alerts"),
    ],
)
def test_a_place_that_is_not_absolute_begins_where_the_worker_runs(place: str, uri: str) -> None:
    assert resolve_uri(place, "/here") == uri
    assert PLACE.matcher.match(place)


def test_an_output_tells_what_was_written_below_its_prefix(tmp_path: Path) -> None:
    run = run_of(work(tmp_path, partition_key="2024-01-01", start=0, end=10))
    run.output().write("a.jsonl", "one\n", rows=1)
    run.output().write("sub/b.jsonl", b"two\nthree\n", rows=2)
    (told,) = run.committed()
    assert (told.location, told.files) == (f"file:{tmp_path}/d/g/t/2/", ["a.jsonl", "sub/b.jsonl"])
    assert (told.rows, told.bytes) == (3, 14)
    assert (told.partition_key, told.start, told.end, told.cursor) == ("2024-01-01", 0, 10, None)
    assert (tmp_path / "d/g/t/2/sub/b.jsonl").read_bytes() == b"two\nthree\n"


def test_an_output_that_nothing_was_written_to_is_an_empty_one_and_a_skipped_one_is_none(tmp_path: Path) -> None:
    run = run_of(work(tmp_path, partition_key="p"))
    assert [(told.files, told.rows) for told in run.committed()] == [([], 0)]
    run.output().skip()
    assert run.committed() == []


def test_an_output_of_a_cursor_task_is_the_segment_up_to_that_cursor(tmp_path: Path) -> None:
    (told,) = run_of(work(tmp_path, cursor=17)).committed()
    assert (told.cursor, told.partition_key) == (17, None)


def test_an_output_can_be_another_partition_than_the_tasks(tmp_path: Path) -> None:
    run = run_of(work(tmp_path, partition_key="2024-01-01"))
    run.output().describe(partition_key="2024-01", start=1, end=32)
    (told,) = run.committed()
    assert (told.partition_key, told.start, told.end) == ("2024-01", 1, 32)


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../other", "a/../../b", "..", "file:/etc/passwd", "s3://other/x"]
)
def test_an_output_file_cannot_be_named_outside_its_prefix(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name an output file"):
        run_of(work(tmp_path)).output().write(name, "x")


def test_a_file_is_written_once(tmp_path: Path) -> None:
    output = run_of(work(tmp_path)).output()
    output.add("a")
    with pytest.raises(UsageError, match="written twice"):
        output.add("a")


def test_a_file_may_be_named_as_its_partition(tmp_path: Path) -> None:
    run = run_of(work(tmp_path, partition_key="12:00"))
    run.output().write("12:00.txt", "noon\n")
    (told,) = run.committed()
    piece = Piece(revision=1, location=told.location, files=told.files)
    given = WorkInput(position=0, name="x", dataset_id="d", generation_id="g", mode="whole", pieces=[piece])
    assert list(run_of(work(tmp_path, inputs=[given])).input().lines()) == ["noon"]


def test_an_input_reads_exactly_the_committed_files_however_many_pages_they_fill(tmp_path: Path) -> None:
    pieces = []
    for revision in range(1, 6):
        (tmp_path / f"{revision}").write_text(f"line {revision}\n")
        pieces.append(Piece(revision=revision, location=f"file:{tmp_path}/", files=[str(revision)]))
    (tmp_path / "stray").write_text("nobody committed this\n")
    given = WorkInput(
        position=0,
        name="orders",
        dataset_id="d",
        generation_id="g",
        mode="whole",
        pieces=pieces[:2],
        more=True,
        after="2",
    )
    run = run_of(
        work(tmp_path, inputs=[given]),
        pages=[PiecesAnswer(pieces=pieces[2:4], after="4"), PiecesAnswer(pieces=pieces[4:])],
    )
    assert list(run.input().lines()) == [f"line {revision}" for revision in range(1, 6)]
    assert run.input("orders") is run.input()


def test_an_input_of_which_no_piece_travelled_is_asked_for_from_its_first_piece(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("line\n")
    given = WorkInput(position=0, name="orders", dataset_id="d", generation_id="g", mode="whole", more=True)
    page = PiecesAnswer(pieces=[Piece(revision=1, location=f"file:{tmp_path}/", files=["a"])])
    assert list(run_of(work(tmp_path, inputs=[given]), pages=[page]).input().lines()) == ["line"]


def test_an_output_of_more_files_than_a_commit_may_name_is_refused(tmp_path: Path) -> None:
    output = run_of(work(tmp_path, partition_key="p")).output()
    for number in range(FILES_MAX):
        output._files.append(f"{number}")  # As ``add`` does, which compares each with all others.
    assert len(output.body(work(tmp_path, partition_key="p")).files) == FILES_MAX
    with pytest.raises(UsageError, match="more than 10,000 files"):
        output.add("one more")


def test_a_name_that_is_no_input_or_output_is_refused_with_those_there_are(tmp_path: Path) -> None:
    run = run_of(work(tmp_path))
    with pytest.raises(NotFound, match="no input 'x': it has none"):
        run.input("x")
    with pytest.raises(NotFound, match="no output 1: it has 1"):
        run.output(1)


def test_a_plain_function_emits_and_an_async_one_is_told_how(tmp_path: Path) -> None:
    said: list[EventBody] = []
    run = run_of(work(tmp_path), said=said)
    assert run.emit(cursor=3)

    async def operator() -> None:
        with pytest.raises(UsageError, match=r"await run\.announce"):
            run.emit(cursor=4)
        assert await run.announce(cursor=5)

    asyncio.run(operator())
    assert [event.cursor for event in said] == [3, 5]


def test_an_operator_emits_for_its_first_output_or_for_the_one_it_names(tmp_path: Path) -> None:
    said: list[EventBody] = []
    run = run_of(work(tmp_path), said=said)
    run.emit(cursor=1)
    run.emit(cursor=2, output=1)
    run.emit(cursor=3, dataset_uuid="d", dataset_version="g")
    named = [(event.output, event.dataset_id, event.generation_id) for event in said]
    assert named == [(0, None, None), (1, None, None), (None, "d", "g")]


def test_a_job_reads_the_secrets_it_names_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "secret-api").write_text("s3cr3t\n")
    (tmp_path / "secret-api").chmod(0o600)
    run = run_of(work(tmp_path, secrets=["api", "gone"]))
    assert run.secret("api") == "s3cr3t"
    with pytest.raises(NotFound, match="has no secret 'gone': put it into"):
        run.secret("gone")
    with pytest.raises(Forbidden, match="name it under its secrets"):
        run.secret("worker.token")
    (tmp_path / "secret-api").chmod(0o644)
    with pytest.raises(ConfigError):
        run.secret("api")


def test_what_an_operator_logs_says_of_which_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = run_of(work(tmp_path, partition_key="p"))
    with caplog.at_level("INFO"):
        one.log.info("%d rows", 3, extra={"more": 1})
    (record,) = caplog.records
    assert record.getMessage().endswith(f", task {one.work.task_id}: 3 rows")
    assert record.getMessage().startswith("shop.clean@p, task t")
    assert (record.task_id, record.more) == (one.work.task_id, 1)  # type: ignore[attr-defined]
