"""The logger of one run, for an operator: ``run.log``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Begins each line with the name of its run: a worker has many at a time."""

    def __init__(self, logger: logging.Logger, about: Mapping[str, Any], name: str) -> None:
        super().__init__(logger, about)
        self._name = name

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        # Names of jobs and keys of partitions have no percent sign, so the message stays a valid format.
        return f"{self._name}: {msg}", {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}
