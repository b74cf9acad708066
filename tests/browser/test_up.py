"""``qo up`` and its dashboard, as one opens it: a pipeline at work, seen from its first event to its last commit."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from playwright.async_api import expect

from support.cli.command import Qo
from support.ui.browsers import Screenshots, Tabs

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
SPARK_PIPELINE = """\
name: shop
jobs:
  - name: sold
    activation: source
    source: {kind: files, path: landing, pattern: "*.csv", poll_seconds: 1}
    outputs: 1
  - name: counted
    activation: reactive
    runtime: spark
    operator: ingest
    inputs: [{from: {job: sold}}]
    execution_strategy: PerPartition
    outputs: 1
    config: {format: csv, options: {header: true}, columns: [{name: n, type: int}]}
  - name: gated
    activation: reactive
    runtime: spark
    operator: shop:gated
    inputs: [{from: {job: counted}}]
    execution_strategy: PerPartition
    outputs: 1
    config: {gate: GATE}
"""
# Spark's tasks wait until the gate is there, so that a look at them does not depend on how quick they are.
SPARK_OPERATORS = """\
import time
from pathlib import Path

from pyspark.sql import functions as F


def gated(counted, config):
    @F.udf("int")
    def passed(n):
        while not Path(config["gate"]).exists():
            time.sleep(0.05)
        return n

    return counted.repartition(4).withColumn("n", passed("n"))
"""
WITHIN_MS = 90_000
WITHIN_WITH_SPARK_MS = 240_000


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


@pytest.mark.timeout(600)
async def test_a_run_on_spark_is_seen_stage_by_stage_while_it_runs(
    tmp_path: Path, tabs: Tabs, screenshots: Screenshots
) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing/monday.csv").write_text("n\n" + "\n".join(map(str, range(8))) + "\n")
    (tmp_path / "pipeline.yaml").write_text(SPARK_PIPELINE.replace("GATE", str(gate)))
    (tmp_path / "shop.py").write_text(SPARK_OPERATORS)
    process = Qo(tmp_path).start("up", "pipeline.yaml")
    assert process.stdout is not None
    try:
        link = await asyncio.to_thread(_link, process.stdout)
        tab = await tabs.open(link, "/runs")
        row = tab.page.locator("tbody tr").filter(has_text="shop.gated")
        await expect(row.filter(has_text="running").first).to_be_visible(timeout=WITHIN_WITH_SPARK_MS)
        await row.first.get_by_role("link").first.click()
        said = re.compile(r"\d+ of \d+ Spark tasks, \d+ of them running, \d+ of \d+ stages")
        await expect(tab.page.locator("main").get_by_text(said)).to_be_visible(timeout=WITHIN_WITH_SPARK_MS)
        await expect(tab.page.get_by_role("progressbar", name="Progress")).to_be_visible()
        await screenshots.take(tab, "run-on-spark")
        gate.touch()
        await expect(tab.page.locator("dd").get_by_text("completed")).to_be_visible(timeout=WITHIN_WITH_SPARK_MS)
        await tab.shown("8 rows")
    finally:
        gate.touch()
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.communicate)
    assert process.returncode == 0


def _link(lines: Iterable[str]) -> str:
    for line in lines:
        if found := re.search(r"http://127\.0\.0\.1:\d+/#c=[\w-]+", line):
            return found[0]
    raise AssertionError("qo up ended without a word on its dashboard")
