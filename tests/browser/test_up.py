"""``qo up`` and its dashboard, as one opens it: a pipeline at work, seen from its first event to its last commit."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from playwright.async_api import expect

from browsers import Tabs
from command import Qo

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

PIPELINE = """\
name: letters
jobs:
  - name: inbox
    activation: source
    source: {kind: files, path: inbox, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: counted
    activation: reactive
    runtime: python
    operator: letters:counted
    inputs: [{from: {job: inbox}}]
    execution_strategy: PerPartition
    outputs: 1
publish:
  counts: {from: {job: counted}}
"""
OPERATORS = """\
def counted(run):
    texts = [body.decode() for body in run.input().read()]
    if "bad" in run.partition_key:
        raise ValueError("this letter cannot be read")
    run.output().write("count.txt", f"{run.partition_key} {sum(map(len, texts))}\\n", rows=1)
"""
WITHIN_MS = 90_000


async def test_a_pipeline_at_work_is_seen_from_its_files_to_its_commits(tmp_path: Path, tabs: Tabs) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "letters.py").write_text(OPERATORS)
    (tmp_path / "inbox/a.txt").write_text("one")
    process = Qo(tmp_path).start("up", "pipeline.yaml")
    assert process.stdout is not None
    try:
        link = await asyncio.to_thread(_link, process.stdout)
        tab = await tabs.open(link, "/runs")
        row = tab.page.locator("tbody tr").filter(has_text="counted")
        await expect(row.filter(has_text="completed").first).to_be_visible(timeout=WITHIN_MS)
        (tmp_path / "inbox/bad.txt").write_text("?!")
        await expect(row.filter(has_text="this letter cannot be read").first).to_be_visible(timeout=WITHIN_MS)
        await tab.go("/dataset/letters.counted")
        await tab.shown("1 partition")
        await tab.go("/pipeline/letters")
        await expect(tab.page.locator("svg g.node")).to_have_count(2)
        await tab.go("/workers?queue=queues/python/")  # The queue of that runtime.
        await tab.shown("active")
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.communicate)
    assert process.returncode == 0


def _link(lines: Iterable[str]) -> str:
    for line in lines:
        if found := re.search(r"http://127\.0\.0\.1:\d+/#c=[\w-]+", line):
            return found[0]
    raise AssertionError("qo up ended without a word on its dashboard")
