"""The fields of expectations: what a job may require of its outputs."""

from __future__ import annotations

from qo.core.pipeline.expectation import KINDS, Severity
from qo.pipeline.kinds import Field, Items, Record, Scalar, Whole, choice
from qo.pipeline.texts import AGE, COLUMN, LINE, NAME

OUTPUTS_MAX = 1_000
RANGE_MAX = 2**53

OUTPUT_INDEX = Field("output", Whole(0, OUTPUTS_MAX - 1), "Which of the job's outputs, counted from 0.", default=0)

_COLUMNS = Items(COLUMN, at_least=1, at_most=32, unique=True)
_BOUND = "Unset: no bound."
EXPECTATION = Record(
    "expectation",
    "Something that must be true of an output; exactly one thing each.",
    (
        Field("name", LINE, "For people. Unset: what it says."),
        OUTPUT_INDEX,
        Field(
            "severity",
            choice(Severity),
            "fail: what does not meet it is not committed. warn: it is committed, and written down.",
            default="fail",
        ),
        Field("not_null", _COLUMNS, "None of these columns has nulls."),
        Field("unique", _COLUMNS, "No two rows have the same values in these columns."),
        Field(
            "range",
            Record(
                "range",
                "Bounds of a column, both included.",
                (
                    Field("column", COLUMN, "Which one.", required=True),
                    Field("min", Scalar(ordered=True), f"The smallest value. {_BOUND}"),
                    Field("max", Scalar(ordered=True), f"The largest value. {_BOUND}"),
                ),
            ),
            "Values lie between two bounds.",
        ),
        Field(
            "accepted",
            Record(
                "accepted",
                "The values that a column may have.",
                (
                    Field("column", COLUMN, "Which one.", required=True),
                    Field("values", Items(Scalar(), at_least=1), "All of them.", required=True),
                ),
            ),
            "Values are among these.",
        ),
        Field(
            "rows",
            Record(
                "rows",
                "How many rows there are.",
                (
                    Field("min", Whole(0, RANGE_MAX), f"At least so many. {_BOUND}"),
                    Field("max", Whole(0, RANGE_MAX), f"At most so many. {_BOUND}"),
                ),
            ),
            "The number of rows lies between two bounds.",
        ),
        Field(
            "freshness",
            Record(
                "freshness",
                "How old the newest value may be.",
                (
                    Field("column", COLUMN, "A date or timestamp.", required=True),
                    Field("within", AGE, "No older than this when the task runs.", required=True),
                ),
            ),
            "The latest value is not too old.",
        ),
        Field(
            "in_partition",
            COLUMN,
            "The values of this date, timestamp or number lie within the partition that is written: others are late, "
            "or early. For jobs whose partitions are declared.",
        ),
        Field(
            "references",
            Record(
                "references",
                "That other rows exist.",
                (
                    Field("columns", _COLUMNS, "Of the output.", required=True),
                    Field("input", NAME, "The input that must have them.", required=True),
                    Field("input_columns", _COLUMNS, "Of the input. Unset: of the same names."),
                ),
            ),
            "Every combination of these columns is one of an input.",
        ),
        Field("sql", LINE, "A condition that holds for every row, in the words of Spark SQL."),
    ),
    one_of=KINDS,
)
