"""Run all checks on a live store, each with a verdict and advice. `qo doctor` does this.

The checks write only under ``doctor/`` and remove what they wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from qo.ambient import SYSTEM, Ambient
from qo.errors import ConcurrentWrite, PreconditionFailed, StoreError
from qo.store.checks import CHECKS, CONDITIONAL_DELETE, DELETE_RACE, VERSIONS, Bench, Broken, Check
from qo.store.erasing import erase
from qo.store.port import ObjectStore
from qo.store.queue_manifest import Proof

WRITERS = 16
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    passed: bool
    required: bool
    detail: str  # What was seen.
    advice: str  # What to do about it; empty if it passed.


@dataclass(frozen=True, slots=True)
class Report:
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Whether qo may use the store."""
        return all(result.passed for result in self.results if result.required)

    def passed(self, name: str) -> bool:
        return any(result.name == name and result.passed for result in self.results)

    def proof(self, *, at: datetime, server: str) -> Proof:
        """What to record in the bucket (``manifest.record_proof``), if the report is ok."""
        return Proof(
            proven_at=at,
            server=server,
            checks=tuple(result.name for result in self.results if result.passed),
            conditional_delete=self.passed(CONDITIONAL_DELETE) and self.passed(DELETE_RACE),
            versioned=self.passed(VERSIONS),
        )


async def prove(
    store: ObjectStore,
    *,
    writers: int = WRITERS,
    rounds: int = ROUNDS,
    allow_no_versioning: bool = False,
    on_check: Callable[[CheckResult], None] = lambda result: None,
    ambient: Ambient = SYSTEM,
) -> Report:
    """Run all checks on a store; ``on_check`` is called with each result.

    If the first check fails, the others are skipped.
    """
    bench = Bench(store, f"doctor/{ambient.token()}/", writers, rounds)
    results: list[CheckResult] = []
    try:
        for check in CHECKS:
            if check.name == VERSIONS and allow_no_versioning:
                check = replace(check, required=False)
            results.append(await _run(check, bench))
            on_check(results[-1])
            if not results[0].passed:
                break
    finally:
        with suppress(StoreError):  # Best effort: what stays is small, and nothing else looks under ``doctor/``.
            await erase(store, bench.used)
    return Report(tuple(results))


async def _run(check: Check, bench: Bench) -> CheckResult:
    def failed(detail: str, advice: str) -> CheckResult:
        return CheckResult(check.name, False, check.required, detail, advice)

    try:
        detail = await check.run(bench)
    except Broken as broken:
        return failed(str(broken), check.advice)
    except (PreconditionFailed, ConcurrentWrite) as error:
        return failed(f"a write was refused although its condition held: {error}", check.advice)
    except StoreError as error:  # Without a reply, nothing is known about the store.
        return failed(f"{type(error).__name__}: {error}", "Fix that first, then run `qo doctor` again.")
    return CheckResult(check.name, True, check.required, detail, "")
