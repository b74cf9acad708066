"""What an operator gets, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from qo.agent.operator_run import Run
from qo.config.settings import Settings
from qo.errors import UsageError
from qo.spark.io.bucketing import Bucketed
from qo.spark.io.files import Files
from qo.spark.stream.stream_progress import StreamProgress

Frames = Mapping[int, DataFrame | Bucketed]  # By output.
Diagnosis = Callable[[BaseException], "BaseException | None"]


class Inputs(Mapping[str, DataFrame]):
    """The job's inputs by name. Each is opened when it is first used: an unused one costs nothing."""

    def __init__(self, names: list[str], open_: Callable[[str], DataFrame]) -> None:
        self._names = names
        self._open = open_
        self._frames: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._frames:
            self._frames[name] = self._open(name)
        return self._frames[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Without opening it.

    @property
    def in_use(self) -> Mapping[str, DataFrame]:
        """Those that were used."""
        return self._frames

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class Context:
    spark: SparkSession
    run: Run
    inputs: Mapping[str, DataFrame]
    config: Mapping[str, Any]
    files: Files
    settings: Settings = field(default_factory=Settings)
    later: ExitStack = field(default_factory=ExitStack)  # Clean-up for the end of the attempt.
    details: dict[str, Any] = field(default_factory=dict[str, Any])  # Added to the task's result; small.
    # Tried in turn for a better error when the returned frames cannot be written.
    diagnoses: list[Diagnosis] = field(default_factory=list[Diagnosis])
    # Of a stream that finds by itself where it was; without one, Spark's checkpoint is kept with the data.
    progress: list[StreamProgress] = field(default_factory=list[StreamProgress])

    @property
    def operator(self) -> str:
        return self.run.work.operator

    def frame(self, rows: Sequence[Any], schema: StructType) -> DataFrame:
        """Make a frame of rows in this process."""
        spark: Any = self.spark  # Its stubs accept only some kinds of rows.
        return spark.createDataFrame(rows, schema)

    def only_input(self) -> tuple[str, DataFrame]:
        """Return name and frame of the only input. Raises UsageError if there are several, or none."""
        if len(self.inputs) != 1:
            raise UsageError(f"{self.operator} reads one input, and {self.run.work.job} has {len(self.inputs)}")
        name = next(iter(self.inputs))
        return name, self.inputs[name]

    def keep(self, frame: DataFrame) -> DataFrame:
        """Keep the rows of a frame that is used several times, until the attempt ends."""
        persisted = frame.persist()
        self.later.callback(persisted.unpersist)
        return persisted

    def skip_all(self) -> Frames:
        """Commit nothing: there is nothing new."""
        for each in self.run.outputs:
            each.skip()
        return {}

    def only_output(self) -> int:
        """Return the index of the only output. Raises UsageError if there are several, or none."""
        if len(self.run.outputs) != 1:
            raise UsageError(
                f"{self.operator} has one output, and {self.run.work.job} has {len(self.run.outputs)}"
            )
        return self.run.outputs[0].details.index
