"""Paths on their way to the dispatcher: what is sent means to every program what it meant to the check."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.ui.forwarding import read_path, write_path

pytestmark = pytest.mark.fast

PIECES = [
    "tokens",
    "dags",
    "a.b[1]",
    "..",
    ".",
    "",
    "%",
    "%2e",
    "%2F",
    "%23",
    "%3f",
    "%00",
    "#",
    ";",
    "\\",
    "?",
    "é",
    "/",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6).map("".join))
def test_a_path_is_sent_as_it_was_checked(rest: str) -> None:
    segments = read_path(f"/v1/{rest}")
    if segments is None:
        return
    sent = write_path(segments)
    decoded = "/" + "/".join(segments)
    assert unquote(sent) == decoded  # As the dispatcher's server reads it.
    url = httpx.URL("http://qo").copy_with(raw_path=sent.encode("ascii"))
    assert (url.path, url.query, url.fragment) == (decoded, b"", "")
    parts = urlsplit(f"http://qo{sent}")
    assert (unquote(parts.path), parts.query, parts.fragment) == (decoded, "", "")
    assert read_path(sent) == segments
    assert not {".", "..", ""} & set(segments)


@pytest.mark.parametrize(
    "name", ["shop", "shop.clean", "shop.clean[1]", "0b5f8f1e-0000-5000-8000-000000000001", "a b"]
)
def test_names_of_ours_pass(name: str) -> None:
    assert read_path(write_path(("v1", "datasets", name, "lineage"))) == ("v1", "datasets", name, "lineage")
