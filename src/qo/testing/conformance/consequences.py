"""The consequences for qo if a store does not keep a promise of the suite.

``qo doctor`` decides whether a store is used. The suite asks for more, including promises that qo does not need.
"""

from __future__ import annotations

from dataclasses import dataclass

from qo.store.checks import BLIND, MILD, UNSAFE

LOSES = "Do not use this store: tasks would be lost or damaged."
STAYS = "Do not use this store: what is deleted must be gone, or ended tasks would be found again."
NO_PAST = (
    "Do not use this store: the history of tasks would be wrong. (With QO_ALLOW_NO_VERSIONING=1 there is none.)"
)
PILES_UP = "qo works without it: index keys are removed by version, and their remains would pile up."
NO_PURGE = "qo works without it: only `qo purge` and retention need it, which would remove too little."
LEAVES_OUT = "qo works without it: `qo history` would leave out states, or show some that were refused."
NOTHING = "Nothing for qo, which does not rely on it."

PARTS = {"Writes": LOSES, "Races": UNSAFE, "Deletes": STAYS, "Lists": BLIND, "History": NO_PAST}

UNSAFE_TOO = {
    "test_a_key_is_created_once",
    "test_a_deleted_key_can_be_created_again",
    "test_a_replace_happens_only_if_the_key_is_unmoved",
    "test_a_missing_key_cannot_be_replaced",
}

DISPENSABLE = {
    "test_the_etag_is_the_quoted_md5_of_the_body": NOTHING,
    "test_equal_bodies_have_equal_etags_and_other_versions": NOTHING,
    "test_the_clock_is_utc_and_about_right": NOTHING,  # Only the store's own clock decides.
    "test_a_delete_and_a_replace_of_one_etag_never_both_happen": MILD,
    "test_a_conditional_delete_happens_only_if_the_key_is_unmoved": MILD,
    "test_a_conditional_delete_of_what_is_gone_is_done": MILD,
    "test_a_version_is_deleted_for_good": PILES_UP,
    "test_once_the_latest_version_is_removed_the_one_before_is_current": PILES_UP,
    "test_without_its_delete_marker_a_key_is_back": PILES_UP,
    "test_a_key_whose_rebirth_is_removed_stays_deleted": PILES_UP,
    "test_a_key_without_versions_left_was_never_there": PILES_UP,
    "test_the_versions_of_many_keys_are_listed_in_order_newest_first": NO_PURGE,
    "test_a_deleted_key_is_listed_among_the_versions": NO_PURGE,
    "test_pages_of_versions_together_are_the_whole": NO_PURGE,
    "test_versions_are_listed_from_behind_a_key": NO_PURGE,
    "test_keys_are_listed_in_the_order_of_their_bytes": NOTHING,  # The keys of qo have the same order on all servers.
    "test_a_key_written_again_keeps_what_was_before_its_deletion": NOTHING,  # A purged task leaves nothing.
    "test_a_refused_write_leaves_no_version": LEAVES_OUT,
    "test_no_version_is_left_out_however_many_there_are": LEAVES_OUT,
}


@dataclass(frozen=True, slots=True)
class Consequence:
    text: str
    required: bool


def consequence_of(part: str, test: str) -> Consequence:
    """Return the consequence if a test fails; ``part`` is its class in the suite."""
    if test in DISPENSABLE:
        return Consequence(DISPENSABLE[test], required=False)
    return Consequence(UNSAFE if test in UNSAFE_TOO else PARTS[part], required=True)
