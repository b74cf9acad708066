"""What an operator works with, and what it returns."""

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
from qo.spark.io.files import Files

Frames = Mapping[int, DataFrame]  # By output.
Diagnosis = Callable[[BaseException], "BaseException | None"]


class Inputs(Mapping[str, DataFrame]):
    """The job's inputs. Each is opened when it is first asked for: what is not named costs nothing."""

    def __init__(self, names: list[str], open_: Callable[[str], DataFrame]) -> None:
        self._names = names
        self._open = open_
        self._opened: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Without opening it.

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
    later: ExitStack = field(default_factory=ExitStack)  # What to undo when the attempt is over.
    said: dict[str, Any] = field(default_factory=dict[str, Any])  # Joins the task's result; small.
    # Asked for a better word when what the operator returned cannot be written.
    diagnoses: list[Diagnosis] = field(default_factory=list[Diagnosis])

    @property
    def operator(self) -> str:
        return self.run.work.operator

    def frame(self, rows: Sequence[Any], schema: StructType) -> DataFrame:
        """Rows that are here already."""
        maker: Any = self.spark  # Its stubs know only some of what it takes.
        return maker.createDataFrame(rows, schema)

    def only_input(self) -> tuple[str, DataFrame]:
        """For operators that read one thing."""
        if len(self.inputs) != 1:
            raise UsageError(f"{self.operator} reads one input, and {self.run.work.job} has {len(self.inputs)}")
        name = next(iter(self.inputs))
        return name, self.inputs[name]

    def only_output(self) -> int:
        """For operators that make one thing."""
        if len(self.run.outputs) != 1:
            raise UsageError(
                f"{self.operator} has one output, and {self.run.work.job} has {len(self.run.outputs)}"
            )
        return self.run.outputs[0].given.index
