"""The column lineage of frames, from the plans that Spark has analysed.

All tasks of an edition have the same lineage, as far as anybody can tell, so it is found once in a while: to ask for a
plan takes some milliseconds. Spark Connect shows no plan that can be read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from qo.agent.operator_run import RunOutput
from qo.api.contract.column_origins import LineageBody
from qo.core.pipeline.column_lineage import Lineage
from qo.core.pipeline.plan_lineage import Node, find_lineage, input_columns, read_plan

log = logging.getLogger(__name__)

AGE_S = 600.0  # Then it is found and sent again: a report may have been lost.
KEPT_MAX = 1_000
PLAN_CHARS_MAX = 20_000_000

_Key = tuple[str, tuple[str, ...]]  # The generation, and the columns of the output.


class FrameLineages:
    """Remembers the lineage of each output, for all attempts of a process."""

    def __init__(self) -> None:
        self._lineages: dict[_Key, tuple[float, LineageBody]] = {}
        self._lock = threading.Lock()

    def describe(self, output: RunOutput, frame: DataFrame, inputs: Mapping[str, DataFrame]) -> None:
        """Set the lineage of an output. It never fails: what cannot be found is unknown."""
        key = (output.details.generation_id, tuple(frame.columns))
        with self._lock:
            at, body = self._lineages.get(key, (0.0, None))
        output.sends_lineage = body is None or time.monotonic() - at > AGE_S
        if body is None or output.sends_lineage:
            body = LineageBody.of(_find(frame, inputs))
            with self._lock:
                self._lineages.pop(key, None)
                if len(self._lineages) >= KEPT_MAX:
                    del self._lineages[next(iter(self._lineages))]
                self._lineages[key] = time.monotonic(), body
        output.lineage = body


LINEAGES = FrameLineages()


def _find(frame: DataFrame, inputs: Mapping[str, DataFrame]) -> Lineage:
    try:
        if getattr(frame, "_jdf", None) is None:
            return Lineage({}, unknown=("Spark Connect does not show the plans of frames",))
        sources = [input_columns(name, _plan(each)) for name, each in inputs.items()]
        return find_lineage(_plan(frame), frame.columns, sources)
    except Exception as error:
        log.debug("the lineage of columns was not found: %r", error)
        return Lineage({}, unknown=(f"the plan could not be read: {type(error).__name__}",))


def _plan(frame: DataFrame) -> Node:
    java_frame: Any = frame._jdf  # type: ignore[attr-defined]
    text: str = java_frame.queryExecution().analyzed().toJSON()
    if len(text) > PLAN_CHARS_MAX:
        raise ValueError(f"the plan has {len(text)} characters")
    return read_plan(msgspec.json.decode(text))
