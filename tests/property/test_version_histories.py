"""Whatever people do with versions while data arrives and workers come and go: every committed row was made by the code
of its version, from the inputs of its version."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable

import pytest

from qo.api.contract.task import Work
from qo.dispatcher.attempts import completion
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import side_inputs
from support.dispatcher.histories import Codes, Installation, LawBroken
from support.dispatcher.states import Clock, opened

pytestmark = pytest.mark.timeout(600)  # A planted bug may show in the last of many histories.

SEEDS = 60 if os.environ.get("PROVE") else 3
STEPS = 45
FOUND_WITHIN = 25  # Histories in which a planted bug shows.


def live(state: State, clock: Clock, seed: int, **planted: Callable[[Installation, Work], Codes]) -> Installation:
    site = Installation(state, clock, random.Random(seed), **planted)
    site.deploy()
    for number in (1, 2):
        site.emit("orders", f"d{number}")
    site.emit("months", "m1")
    for _ in range(STEPS):
        site.step()
    return site


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_row_was_made_by_the_code_of_its_version_from_the_inputs_of_its_version(
    state: State, state_clock: Clock, seed: int
) -> None:
    site = live(state, state_clock, seed)
    site.settle()
    site.check()


def old_worker(site: Installation, work: Work) -> Codes:
    """It runs what it had imported when it was started, and says that it was the task's."""
    assert site.imported is not None
    return site.imported


def newest_code(site: Installation, work: Work) -> Codes:
    """It runs what lies on the disk, whichever version the task belongs to: a rollback takes back no code."""
    return site.codes


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(completion, "_wrong_code", lambda *_: None)


def _no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(side_inputs, "is_held", lambda *_: False)
    patch.setattr(side_inputs, "is_compared", lambda *_: True)


@pytest.mark.parametrize(
    ("plant", "planted"),
    [
        (_no_fence, {"code_of": old_worker}),
        (_no_wait, {}),
        (_no_fence, {"code_of": newest_code}),
    ],
    ids=["deploys beside old workers", "rebuilds that do not wait", "rollbacks without code"],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    plant: Callable[[pytest.MonkeyPatch], None],
    planted: dict[str, Callable[[Installation, Work], Codes]],
) -> None:
    plant(monkeypatch)
    for seed in range(FOUND_WITHIN):
        clock = Clock()
        with opened(f"sqlite:{tmp_path_factory.mktemp('histories') / 'state.db'}", clock) as state:
            with contextlib.suppress(LawBroken):
                live(state, clock, seed, **planted).settle()
                continue
            return
    pytest.fail("no history shows it")
