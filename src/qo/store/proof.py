"""The proof of a store: every check, run on the live store, with a verdict and advice. `qo doctor` runs it.

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
from qo.store.manifest import Proof
from qo.store.port import ObjectStore

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
    """Put a store through all checks; ``on_check`` hears of each as it ends.

    If the first fails there is no store to speak of, and the others are left out.
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
        return failed(f"a write was refused although nothing stood against it: {error}", check.advice)
    except StoreError as error:  # No wrong answer, but none: that says nothing about the store's promises.
        return failed(f"{type(error).__name__}: {error}", "Mend that first, then run `qo doctor` again.")
    return CheckResult(check.name, True, check.required, detail, "")
