"""What ``qo catalog connect`` prints, run as whoever copies it would run it."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from support.cli.command import Qo
from support.dispatcher.listeners import Served


def command_at(dispatcher: Served, directory: Path) -> Qo:
    """The command, for a reader with a token in its environment."""
    environment = {"QO_DISPATCHER_URL": dispatcher.addresses.public, "QO_TOKEN": dispatcher.tokens["reader"]}
    return Qo(directory, environment)


def run_snippet(qo: Qo, program: str, table: str = "orders") -> tuple[dict[str, Any], str]:
    """Run the text for a program in this process. Return its variables, and what it printed."""
    text = qo.json("catalog", "connect", program, "--table", table)["text"]
    variables: dict[str, Any] = {}
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(text, f"<{program}>", "exec"), variables)
    return variables, out.getvalue()
