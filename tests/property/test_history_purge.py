"""Purging history at any moment changes no decision."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from qo.dispatcher.engine.purging.purge_round import PurgeCounts
from support.dispatcher.fresh_states import FreshStates
from support.dispatcher.purged_twins import VERBS, Step, Twin
from support.dispatcher.states import Clock

pytestmark = pytest.mark.timeout(600)

steps = st.lists(st.builds(Step, st.sampled_from(VERBS), st.integers(0, 5)), min_size=6, max_size=14)
DEPLOYED = [Step("deploy", 0), Step("order", 0), Step("rate", 0), Step("order", 1), Step("rate", 1)]

CORRECTED = [
    Step(verb, number)
    for verb, number in (
        ("deploy", 0),
        ("order", 0),
        ("rate", 0),
        ("order", 2),
        ("order", 4),
        ("deploy", 1),
        ("abandon", 0),
        ("wait", 5),
        ("order", 2),  # The key once more.
        ("deploy", 1),  # It was given up.
        ("invalidate", 0),
    )
]


def test_purging_history_changes_no_decision_about_corrections_and_versions(fresh_states: FreshStates) -> None:
    counts = compare(fresh_states, CORRECTED, failing={6}, steps_between=len(CORRECTED))
    assert min(counts.tasks, counts.events, counts.generations) > 0


@pytest.mark.long
def test_purging_history_at_any_moment_changes_no_decision(fresh_states: FreshStates) -> None:
    """Not of routing, release, rebuilds, refreshes, rollbacks, failures or ``qo why``; and nothing happens twice."""

    # Shrinking would take minutes: the message names the step.
    @hypothesis_settings(
        fresh_states.settings(max_examples=8), phases=[Phase.explicit, Phase.reuse, Phase.generate]
    )
    @given(history=steps, failing=st.sets(st.integers(0, 20)))
    def check(history: Sequence[Step], failing: set[int]) -> None:
        compare(fresh_states, [*DEPLOYED, *history], failing=failing, steps_between=1)

    check()


def compare(
    fresh_states: FreshStates, history: Sequence[Step], *, failing: Collection[int], steps_between: int
) -> PurgeCounts:
    """Compare the decisions of both twins each time after so many steps; return what was purged."""
    clocks = Clock(), Clock()
    with fresh_states.opened(clocks[0]) as kept, fresh_states.opened(clocks[1]) as purged:
        twins = Twin(kept, clocks[0], purges=False), Twin(purged, clocks[1], purges=True)
        for number, step in enumerate(history, start=1):
            outcomes = [live(each, step, failing=number in failing) for each in twins]
            assert outcomes[0] == outcomes[1], f"{step} ended as {outcomes}"
            if number % steps_between == 0:
                left, right = (each.decisions() for each in twins)
                for name, decided in left.items():
                    assert right[name] == decided, f"after step {number}, {step}: {name} differ"
        return twins[1].counts


def live(twin: Twin, step: Step, *, failing: bool) -> str:
    outcome = step.take(twin)
    twin.settle(failing=failing)
    twin.clock.advance(90_000.0)
    twin.collect()
    return outcome
