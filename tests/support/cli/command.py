"""The command ``qo`` as a user runs it, in a directory and environment of its own.

``qo(...)`` is a process; ``qo.ok(...)`` and ``qo.json(...)`` run the same ``main`` in this one, which is quicker.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from qo.cli.main import main


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Qo:
    cwd: Path
    environ: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        """Ours, without anything that could lead qo to another store or set it up differently.

        What Python compiles is kept where it always is: to compile everything takes longer than most commands.
        """
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("QO_", "S3_", "AWS_", "PYTHON"))}
        return {**ours, "NO_COLOR": "1", **self.environ}

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "qo", *args]

    def __call__(self, *args: str, stdin: str = "", timeout_s: float = 60.0) -> Answer:
        done = subprocess.run(
            self.command(*args),
            cwd=self.cwd,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """A command that runs until it is stopped."""
        return subprocess.Popen(
            self.command(*args),
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def here(self, *args: str, stdin: str = "") -> Answer:
        out, err = io.StringIO(), io.StringIO()
        with self._there(stdin), redirect_stdout(out), redirect_stderr(err):
            code = main(args)
        return Answer(code, out.getvalue(), err.getvalue())

    def ok(self, *args: str, stdin: str = "") -> str:
        """What a command printed that must have succeeded."""
        answer = self.here(*args, stdin=stdin)
        assert answer.code == 0, answer
        return answer.out

    def json(self, *args: str, stdin: str = "") -> Any:
        return json.loads(self.ok(*args, "--json", stdin=stdin))

    @contextmanager
    def _there(self, stdin: str) -> Iterator[None]:
        text = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        environment = mock.patch.dict(os.environ, self.environment, clear=True)
        with chdir(self.cwd), environment, mock.patch("sys.stdin", text):
            yield
