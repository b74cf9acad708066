"""The log of an attempt is bounded, keeps its beginning and its end, and counts what it drops."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from qo.agent.logs.line_buffer import LineBuffer
from qo.core import run_log
from qo.core.run_log import LINE_CHARS_MAX, Chunk, Limits, Line, LogChunks

LIMITS = Limits(32 * 1024)
batches = st.lists(st.lists(st.integers(1, 3000), max_size=12), max_size=25)


class Stored:
    """A store that keeps what a log writes, and fails when it is told to."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def take(self, chunks: LogChunks, *, works: bool = True) -> None:
        if not works:
            return
        for chunk in chunks.unsaved():
            self.bodies[chunk.name] = bytes(chunk.body)
            chunks.mark_saved(chunk, len(chunk.body))
        for name in chunks.stale():
            del self.bodies[name]
        chunks.mark_deleted(chunks.stale())

    @property
    def lines(self) -> list[Line]:
        return [line for name in sorted(self.bodies) for line in run_log.decode(self.bodies[name])]


def encoded(number: int, size: int) -> tuple[int, bytes]:
    return number, run_log.encode(Line(number, 0.0, "stdout", "x" * size))


@given(batches, st.lists(st.booleans(), min_size=25, max_size=25))
def test_a_log_keeps_its_beginning_and_its_end_within_its_limit(sizes: list[list[int]], works: list[bool]) -> None:
    chunks, stored, number = LogChunks(LIMITS), Stored(), 0
    for batch, is_working in zip(sizes, works, strict=False):
        chunks.add(encoded(number + at, size) for at, size in enumerate(batch, 1))
        number += len(batch)
        stored.take(chunks, works=is_working)
        assert chunks.kept_bytes <= LIMITS.bytes_max + LIMITS.chunk
    stored.take(chunks)
    numbers = [line.n for line in stored.lines]
    assert numbers == sorted(set(numbers))
    assert sum(map(len, stored.bodies.values())) == chunks.kept_bytes <= LIMITS.bytes_max + LIMITS.chunk
    if number:
        assert numbers[0] == 1
        assert numbers[-1] == number
        gaps = [b for a, b in pairwise(numbers) if b != a + 1]
        assert len(gaps) <= 1  # Only the middle is dropped.
    if sum(len(encoded(1, size)[1]) for batch in sizes for size in batch) < LIMITS.tail:
        assert len(numbers) == number


@given(batches, st.integers(0, 200))
def test_a_reader_needs_no_chunk_before_the_one_with_its_next_line(sizes: list[list[int]], after: int) -> None:
    chunks, stored, number = LogChunks(LIMITS), Stored(), 0
    for batch in sizes:
        chunks.add(encoded(number + at, size) for at, size in enumerate(batch, 1))
        number += len(batch)
        stored.take(chunks)
    names = sorted(stored.bodies)
    firsts = [run_log.first_of(name) or 0 for name in names]
    read = [
        line.n
        for name in names[run_log.needed_from(firsts, after) :]
        for line in run_log.decode(stored.bodies[name])
    ]
    assert [n for n in read if n > after] == [line.n for line in stored.lines if line.n > after]


def test_a_full_chunk_that_is_saved_takes_no_memory() -> None:
    chunks, stored = LogChunks(LIMITS), Stored()
    seen: set[int] = set()
    for number in range(1, 40):
        chunks.add([encoded(number, 1000)])
        stored.take(chunks)
    held: list[Chunk] = [*chunks._head, *chunks._tail]
    for chunk in held[:-1]:
        assert not chunk.body
        seen.add(chunk.first)
    assert len(seen) > 2


@given(st.lists(st.text(alphabet="ab\n", max_size=9), max_size=40))
def test_lines_are_what_was_printed_however_it_was_divided(parts: list[str]) -> None:
    buffer = LineBuffer(Limits(1024 * 1024), float)
    for part in parts:
        buffer.write("stdout", part)
    buffer.finish_lines()
    text = "".join(parts)
    expected = text.split("\n")[:-1] + ([text.split("\n")[-1]] if text.split("\n")[-1] else [])
    assert [line.text for line in buffer.take()] == expected


@given(st.lists(st.integers(0, 500), max_size=400))
def test_what_waits_for_a_slow_store_is_bounded(sizes: list[int]) -> None:
    buffer = LineBuffer(Limits(8 * 1024), float)
    for size in sizes:
        buffer.write("stdout", "x" * size + "\n")
    lines = buffer.take()
    assert sum(len(line.text) + 80 for line in lines) <= 8 * 1024 + 600
    if sizes:
        assert (lines[0].n, lines[-1].n) == (1, len(sizes))


def test_a_line_that_is_written_over_shows_its_last_state() -> None:
    buffer = LineBuffer(LIMITS, float)
    for text in ("\r 10%", "\r 20%", "\r100%", "\n", "50%\r", "60%\r", "done\n", "windows\r\n"):
        buffer.write("stderr", text)
    assert [line.text for line in buffer.take()] == ["100%", "done", "windows"]


def test_a_long_line_is_cut_and_says_so() -> None:
    buffer = LineBuffer(Limits(1024 * 1024), float)
    for _ in range(100):
        buffer.write("stdout", "x" * 1000)
    buffer.write("stdout", "\n")
    (line,) = buffer.take()
    assert line.length == 100_000
    assert run_log.cut(line.text, line.length).endswith("… (92,000 more characters)")
    assert len(line.text) < LINE_CHARS_MAX * 2


def test_streams_do_not_mix_within_a_line() -> None:
    buffer = LineBuffer(LIMITS, float)
    for stream, text in (("stdout", "a"), ("stderr", "b"), ("stdout", "c\n"), ("stderr", "d\n")):
        buffer.write(stream, text)
    assert [(line.stream, line.text) for line in buffer.take()] == [("stdout", "ac"), ("stderr", "bd")]


def test_the_place_of_a_log_follows_from_the_attempt() -> None:
    at = datetime(2026, 11, 17, 23, 30, tzinfo=timezone(timedelta(hours=-2)))
    task = "0192e8c0-1111-7222-8333-444455556666"
    prefix = run_log.prefix_of(task, 3, at)
    assert prefix == f"_logs/2026-11-18/{task}/3/"
    assert run_log.prefix_of(task, 3, at.astimezone(UTC)) == prefix
    assert run_log.PREFIX.match(prefix) is not None
    assert run_log.split_location(f"s3://bucket/a/_logs/b/{prefix}") == ("s3://bucket/a/_logs/b", prefix)


def test_flushes_become_rarer_but_never_rare() -> None:
    delays = [run_log.flush_delay_s(number) for number in range(100)]
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (0.5, 4.0)


def test_damaged_lines_are_left_out() -> None:
    good = run_log.encode(Line(1, 0.0, "stdout", "a\x1b[31m\u2028b"))
    assert [line.text for line in run_log.decode(good + b"{broken\n\xff\n" + good)] == ["a\x1b[31m\u2028b"] * 2
