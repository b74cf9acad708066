"""Handlers for workers that have no more rights than they need."""

from __future__ import annotations

from typing import Any

import qo

app = qo.App()


@app.task("grow")
async def grow(input: Any, ctx: qo.Context) -> Any:
    """Answers with so many letters, and has a child on the way."""
    await ctx.submit("note", {"of": ctx.task_id})
    return "x" * input["letters"]


@app.task("note")
async def note(input: Any) -> str:
    return input["of"]


@app.on_failure("fail")
async def bury(failure: qo.Failure) -> str:
    return failure.task_id


@app.task("fail")
async def fail(input: Any) -> None:
    raise qo.Reject("as it was asked to")
