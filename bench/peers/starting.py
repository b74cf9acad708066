"""Handlers that say when they began."""

from __future__ import annotations

import time
from typing import Any

import qo

app = qo.App()


@app.task("start")
async def start(_: Any) -> float:
    return time.monotonic()  # The same clock in all processes of a machine.
