"""From the word in a job's ``operator`` to frames."""

from __future__ import annotations

from collections.abc import Callable

from qo.errors import NotFound
from qo.spark.operators import alert, check, compact, functions, ingest, sql, stream
from qo.spark.operators.context import Context, Frames

BUILT_IN: dict[str, Callable[[Context], Frames]] = {
    "alert": alert.run,
    "check": check.run,
    "compact": compact.run,
    "ingest": ingest.run,
    "sql": sql.run,
    "stream": stream.run,
}


def call(context: Context) -> Frames:
    """A frame for each output that is to be written. Raises NotFound for a word that stands for nothing."""
    name = context.operator
    if name in BUILT_IN:
        return BUILT_IN[name](context)
    if ":" not in name:
        known = ", ".join(sorted(BUILT_IN))
        raise NotFound(f"Spark has no operator {name!r}: write module:function, or one of {known}")
    return functions.call(context, context.run.code.load(name))
