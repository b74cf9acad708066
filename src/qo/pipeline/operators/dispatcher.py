"""The operators that the dispatcher runs itself: bookkeeping, no computation."""

from __future__ import annotations

from qo.core.pipeline.dag import Strategy
from qo.pipeline.expectation_fields import RANGE_MAX
from qo.pipeline.kinds import Field, Record, Whole
from qo.pipeline.operators.spec import OperatorSpec

NOOP = OperatorSpec(
    name="noop", runtimes=("dispatcher",), run="qo.dispatcher.runtimes.in_process:pass_on"
)  # Passes on what it gets.

RANGE_SPLITTER = OperatorSpec(
    name="range_splitter",
    runtimes=("dispatcher",),
    run="qo.dispatcher.runtimes.in_process:split_partition",
    config=Record(
        "range_splitter",
        "Cuts a range into smaller ones.",
        (Field("chunk_size", Whole(1, RANGE_MAX), "How long each range is.", required=True),),
    ),
    example="chunk_size: 1000",
    strategy=Strategy.PER_PARTITION,
    emits_partitions=True,
)

RANGE_AGGREGATOR = OperatorSpec(
    name="range_aggregator",
    runtimes=("dispatcher",),
    run="qo.dispatcher.runtimes.in_process:close_ranges",
    config=Record(
        "range_aggregator",
        "Joins cursors that follow each other into ranges of one length.",
        (
            Field("range_size", Whole(1, RANGE_MAX), "How long each range is.", required=True),
            Field("start", Whole(0, RANGE_MAX), "Where the first range begins.", default=0),
        ),
    ),
    example="range_size: 1000",
    strategy=Strategy.PER_UPDATE,
    emits_partitions=True,
)

DISPATCHER = (NOOP, RANGE_SPLITTER, RANGE_AGGREGATOR)
