"""The families of the dispatcher suite, in the order they are measured."""

from __future__ import annotations

from bench.dispatcher import (
    claimable,
    claims,
    definitions,
    flow,
    growth,
    orchestrators,
    purging,
    statements,
    throughput,
)

FAMILIES = [
    *definitions.FAMILIES,
    *flow.FAMILIES,
    *claimable.FAMILIES,
    *claims.FAMILIES,
    *statements.FAMILIES,
    *throughput.FAMILIES,
    *orchestrators.FAMILIES,
    *growth.FAMILIES,
    *purging.FAMILIES,
]
