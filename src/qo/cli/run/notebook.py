"""%load_ext qo: the commands and the datasets of qo in IPython and its notebooks.

    %load_ext qo
    %qo status flights
    read("daily_sales")

IPython is no dependency of qo: what loads an extension has it.
"""

from __future__ import annotations

import atexit
import io
import logging
import shlex
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from threading import Thread
from typing import Any

NAME = "qo"
SHELL = "shell"
# They run until they are stopped, or open a session of Spark of their own, and a process has room for one.
_ELSEWHERE = frozenset(
    ("dispatcher", "monitor", "relay", "scaler", "scheduler", "serve", "sink", "try", "ui", "up", "worker")
)
_ENDLESS_OPTIONS = frozenset({"--watch", "-w", "--follow", "-f", "--spark"})
_TABLES = "spark.sql.repl.eagerEval.enabled"  # Frames show their first rows, as HTML in a notebook.


def load(ipython: Any) -> None:
    """Add the magic ``%qo``, and ``read`` to the names of the user, of a prompt of IPython."""
    notebook = Notebook(ipython)
    ipython.register_magic_function(notebook.run, "line", NAME)
    ipython.push({"read": notebook.read})


def unload(ipython: Any) -> None:
    """Remove the magic, and stop the session of Spark if the extension has started it."""
    magic = ipython.magics_manager.magics["line"].pop(NAME, None)
    notebook = getattr(magic, "__self__", None)
    if isinstance(notebook, Notebook):
        notebook.close()


class Notebook:
    """The commands of one prompt or notebook, and its session of Spark, which the first ``read`` starts."""

    def __init__(self, ipython: Any) -> None:
        self._ipython = ipython
        self._later = ExitStack()
        self._names: dict[str, Any] | None = None
        atexit.register(self.close)

    def run(self, line: str) -> None:
        """Run a command of qo, such as %qo status flights. %qo shell starts Spark: spark, F, and read("NAME")."""
        from IPython.core.error import UsageError

        args = shlex.split(line)
        if args == [SHELL]:
            self._open()
            return
        if _ELSEWHERE & set(args[:1]) or _ENDLESS_OPTIONS & set(args):
            raise UsageError(f"run this in a terminal, not in a notebook: qo {line}")
        code, out, error = run_command(args)
        sys.stdout.write(out)
        if code:  # So that the cells below do not run.
            raise UsageError(error.strip() or f"qo {line} ended with exit code {code}")
        sys.stderr.write(error)

    def read(self, name: str, *, version: int | None = None) -> Any:
        """Return a dataset as a frame, as it is now or as of a version. The first call starts Spark."""
        return self._open()["read"](name, version=version)

    def close(self) -> None:
        """Stop the session of Spark, unless it is the user's own."""
        atexit.unregister(self.close)
        self._names = None
        self._later.close()

    def _open(self) -> dict[str, Any]:
        """Return the names of ``qo shell``, and give them to the user. A ``spark`` of the user's is kept."""
        if self._names is None:
            from qo.cli.pipelines.dispatcher_client import require_extra
            from qo.cli.run.shell import name_objects
            from qo.config import origins

            settings = origins.load()
            spark: Any = self._ipython.user_ns.get("spark")
            with require_extra():
                from qo.up.trial import open_session
            if spark is None:
                spark = self._later.enter_context(open_session(settings))
            spark.conf.set(_TABLES, "true")
            self._names = name_objects(spark, settings)
            self._ipython.push({name: each for name, each in self._names.items() if name != "read"})
        return self._names


def run_command(args: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, its output, and its errors and notes.

    It runs in a thread of its own, since a notebook has an event loop in this one.
    """
    from qo.cli.main import main

    out, error, codes = io.StringIO(), io.StringIO(), list[int]()
    thread = Thread(target=lambda: codes.append(main(args)), name=f"qo {shlex.join(args)}", daemon=True)
    with redirect_stdout(out), redirect_stderr(error), _own_logging(), _nobody_answers():
        thread.start()
        thread.join()
    return (codes or [1])[0], out.getvalue(), error.getvalue()


@contextmanager
def _own_logging() -> Generator[None]:
    """Give the handlers and the level of the root logger back: those of a command write to its own output."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextmanager
def _nobody_answers() -> Generator[None]:
    """Let the command read an empty input, so that it asks nothing that nobody would see."""
    before, sys.stdin = sys.stdin, io.StringIO()
    try:
        yield
    finally:
        sys.stdin = before
