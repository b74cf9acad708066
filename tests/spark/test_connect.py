"""Clients of a server: the same results, and nobody in it who should not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.spark.children import SUMS, Child, runs, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.long
def test_a_server_of_its_own_does_the_same_and_outlives_nobody(tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.mkdir()
    with Child(tmp_path, "connect", TMPDIR=str(left)) as child:
        assert child.next() == SUMS
        # A later attempt shuts out the one before, at work or coming back.
        assert shut_out(child.next())
        assert child.next() == 3
        assert "shut out" in child.next()
        # One that is stopped ends, another goes on, and one that is small does not wait for it.
        assert shut_out(child.next())
        assert child.next() == 5
        assert child.next() is True
        server = child.next()
        assert runs(server)
        child.process.kill()
        assert until(lambda: not runs(server) and not list(left.glob("qo-connect-*")))


@pytest.mark.long  # Two servers start, as two sessions do where one is killed.
def test_a_server_that_died_is_started_anew_and_who_was_in_it_is_told(tmp_path: Path) -> None:
    with Child(tmp_path, "connect_again") as child:
        assert child.next() == 4
        assert child.next() is True
        assert child.process.wait(60) == 0


def shut_out(error: str) -> bool:
    return "SESSION_CLOSED" in error or "OPERATION_CANCELED" in error
