"""A source whose place cannot be looked at is named before anybody waits for its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from qo.config.settings import Settings
from qo.up.file_sources import describe_unreadable
from support.dispatcher.pipelines import dag, job, source

pytestmark = pytest.mark.fast


async def test_only_places_that_cannot_be_looked_at_are_named(tmp_path: Path) -> None:
    given = dag(
        "d",
        source("here", "files", of={"path": str(tmp_path)}),
        source("typo", "files", of={"path": f"file:{tmp_path}/nowhere"}),
        source("odd", "files", of={"path": "ftp://host/files"}),
        source("short", "files", of={"path": "s3:/bucket/files"}),
        source("by_hand"),
        job("clean", reads="here"),
    )
    odd, short, typo = sorted(await describe_unreadable(given, Settings()))
    assert (
        typo
        == f"typo finds no files: there is no directory {tmp_path}/nowhere: create it, or correct the source's path"
    )
    for said, path in {odd: "ftp://host/files", short: "s3:/bucket/files"}.items():
        assert f"finds no files: {path!r} cannot be watched: write a directory" in said
