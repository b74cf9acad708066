"""Every setting of a worker has a flag."""

from __future__ import annotations

import pytest
import typer

from qo.cli.run.worker import app
from qo.config.origins import load
from qo.config.settings import SETTINGS
from qo.errors import ConfigError
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.worker.api.handler import Rate
from qo.worker.config import WorkerConfig
from qo.worker.service import worker_config

pytestmark = pytest.mark.fast

KEYS = [row.key for row in SETTINGS if row.key.startswith("worker.")]


def configured(**flags: str) -> WorkerConfig:
    settings = load({"worker.id": "w", **flags}, environ={})
    return worker_config(Queue(MemoryStore()), settings, stop_when_empty=False)


def test_every_setting_of_a_worker_is_an_option_of_its_command() -> None:
    command = typer.main.get_command(app)
    options = {option for each in command.commands["worker"].commands["run"].params for option in each.opts}  # type: ignore[attr-defined]
    assert {row.flag for row in SETTINGS if row.key in KEYS} <= options


def test_a_rate_is_starts_and_seconds() -> None:
    assert configured(**{"worker.rate_limit": "10/60"}).service.rate_limit == Rate(10, 60)
    assert configured(**{"worker.rate_limit": "5"}).service.rate_limit == Rate(5, 1)
    for wrong in ("0/60", "10/0", "ten", "10/", "-1/2"):
        with pytest.raises(ConfigError, match="such as 10/60"):
            configured(**{"worker.rate_limit": wrong})
