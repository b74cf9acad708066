"""The page about metrics names what is served, and only that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from qo.core.pipeline.supervision import SourceState
from qo.dispatcher.engine import metrics as dispatcher
from qo.dispatcher.engine.loop import TICK_S_MAX
from qo.dispatcher.http import metrics as served
from qo.queue_api import metrics_page
from qo.worker.loop.state import State
from qo.worker.observe import metrics
from qo.worker.observe.stats import BUCKETS_S, ENDS, TYPES_MAX
from qo.worker.observe.status import KEEPER_BLOCKED_S_MAX, LOOP_BLOCKED_S_MAX

pytestmark = pytest.mark.fast

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference/metrics.md").read_text()
NAMES = (*metrics.NAMES, *served.NAMES, *dispatcher.NAMES, *metrics_page.NAMES)


def test_every_metric_is_documented_and_no_other():
    documented = re.findall(r"^\| `(qo_\w+)", PAGE, re.MULTILINE)
    assert sorted(documented) == sorted(NAMES)


def test_rules_and_examples_use_metrics_that_there_are():
    pages = PAGE + (DOCS / "guides/dispatcher.md").read_text()
    used = set(re.findall(r"\bqo_(?:worker|task|dispatcher)_\w+", pages))
    series = {f"{name}{suffix}" for name in NAMES for suffix in ("", "_bucket", "_count", "_sum")}
    assert used <= series


def test_every_label_value_and_limit_is_documented():
    for value in [*ENDS, *State, *SourceState]:
        assert f"`{value}`" in PAGE
    for limit in [
        LOOP_BLOCKED_S_MAX,
        KEEPER_BLOCKED_S_MAX,
        TYPES_MAX,
        BUCKETS_S[-1],
        TICK_S_MAX,
        served.COUNT_MAX,
    ]:
        assert re.search(rf"\b{limit:,.0f}\b", PAGE), limit


def test_the_metrics_library_is_not_loaded_before_the_first_scrape():
    code = "import sys, qo.worker.observe.status; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
