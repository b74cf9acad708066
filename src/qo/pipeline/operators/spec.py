"""The declaration of a built-in operator. Everything that other modules must know of it is said here, once.

Validation, the JSON Schema, the registry of runtimes and the code that calls operators all read these declarations. To
add an operator, declare it in the module of its runtime and write the function that its ``run`` names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qo.core.pipeline.dag import Strategy
from qo.pipeline.draft import JobDraft
from qo.pipeline.kinds import Record
from qo.pipeline.problems import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """A built-in operator: what a job that names it may say, and which function runs it."""

    name: str
    runtimes: tuple[str, ...]
    # "module:function", imported on the first call, since it stands above this package. None: not called by name.
    run: str | None = None
    config: Record | None = None  # None: the job's config, inputs and outputs are not checked.
    example: str = ""  # A smallest config, as a hint for jobs that have none.
    inputs_max: int | None = None
    # How many outputs a job with this config has; None: one.
    outputs_of: Callable[[Mapping[str, Any]], int] | None = None
    has_side_effects: bool = False  # Such an operator may have no output; every other one has exactly one.
    is_source: bool = False  # Runs without inputs, as an always_on source.
    strategy: Strategy | None = None  # The only execution strategy that it works with.
    emits_partitions: bool = False  # Whatever its own strategy is.
    keeps_row_per_key: bool = False  # Its outputs have one row for each of the ``keys`` of its config.
    validate: Callable[[JobDraft, Report], None] | None = None  # Called once the config has the right shape.

    @property
    def needs_config(self) -> bool:
        return self.config is not None and (
            bool(self.config.one_of) or any(field.required for field in self.config.fields)
        )

    @property
    def takes_query_file(self) -> bool:
        """Whether its query may lie in a file of its own, which a deploy writes into the config."""
        return self.config is not None and {"query", "file"} <= self.config.by_name.keys()

    def load(self) -> Callable[..., Any]:
        """Import the function that runs it. Raises LookupError if it is not called by name."""
        if self.run is None:
            raise LookupError(f"the operator {self.name} is not run by a function of its own")
        module, _, function = self.run.partition(":")
        return getattr(importlib.import_module(module), function)
