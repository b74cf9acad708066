"""Code that leaks as people's code does: it puts what it was given into its errors."""

from __future__ import annotations

import os
from typing import Any

import qo

app = qo.App()


def leak(run: qo.Run) -> None:
    """Fails with all that it knows: its environment, a secret of its own, and the URL of a database."""
    password = run.secret("warehouse")
    url = f"postgresql://ada:{password}@warehouse/sales"
    raise RuntimeError(f"cannot connect to {url} ({password}) with {dict(os.environ)}")


@app.task("leak")
async def leak_in_a_task(input: Any) -> None:
    raise RuntimeError(f"cannot go on with {dict(os.environ)}")


@app.task("leak-in-a-process", kind="process")
def leak_in_a_process(input: Any) -> None:
    raise RuntimeError(f"cannot go on with {dict(os.environ)}")
