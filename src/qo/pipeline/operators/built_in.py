"""All built-in operators, by name."""

from __future__ import annotations

from qo.pipeline.kinds import Field, Items, Record, Text
from qo.pipeline.operators.by_key import BY_KEY
from qo.pipeline.operators.dispatcher import DISPATCHER
from qo.pipeline.operators.jdbc_fields import JDBC
from qo.pipeline.operators.kafka_fields import KAFKA
from qo.pipeline.operators.spark import SPARK
from qo.pipeline.operators.spec import OperatorSpec

# Code of users, which the dispatcher has a function service run: an uploaded bundle, named in the job's ``udf``.
UDF = OperatorSpec(name="udf", runtimes=("lambda",))

# A command of an image, which the dispatcher has a container engine run.
CONTAINER = OperatorSpec(
    name="container",
    runtimes=("container",),
    config=Record(
        "container",
        "A command of an image.",
        (
            Field(
                "image",
                Text(
                    "the name of an image, such as registry.example.com/score:7", r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"
                ),
                "The image; unset: that of the runtime's settings.",
            ),
            Field(
                "command",
                Items(Text("an argument", r"[^\x00]*", 10_000), at_least=1),
                "The command; unset: that of the image.",
            ),
            Field(
                "env",
                Items(Text("the name of a variable", "[A-Z][A-Z0-9_]{0,99}"), at_most=50, unique=True),
                "Variables that it requests, of those that the runtime's settings offer.",
            ),
        ),
    ),
    example="image: registry.example.com/score:7",
    has_side_effects=True,
)

BUILT_IN: dict[str, OperatorSpec] = {
    spec.name: spec for spec in (*SPARK, *BY_KEY, JDBC, KAFKA, *DISPATCHER, UDF, CONTAINER)
}


def operators_of(runtime: str) -> frozenset[str]:
    return frozenset(spec.name for spec in BUILT_IN.values() if runtime in spec.runtimes)
