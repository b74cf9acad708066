"""Secrets in a secret manager, through a command of the user's.

    COMMAND list            print the names, one on each line
    COMMAND read NAME       print the content; exit code 3: there is no such secret
    COMMAND create NAME     store what comes on standard input; exit code 4: there is one already
    COMMAND replace NAME    store what comes on standard input in place of what is there
    COMMAND delete NAME     delete it, if it is there

Any other exit code is a failure. The manager must let one of two creators win; it need not compare what it replaces, so
two people who change the secrets of one webhook at the same time may undo each other.
"""

from __future__ import annotations

import hashlib
import hmac
import shlex
import subprocess
import threading
from collections.abc import Mapping

from qo.ambient import SYSTEM, Ambient
from qo.dispatcher.secrets.secret_store import PREFIXES, SecretListing, Veto, prefix_of
from qo.errors import ConfigError, Unavailable

REFRESH_MIN_S = 10.0  # A secret manager may charge for each question.
TIMEOUT_S = 30.0
EXIT_ABSENT, EXIT_EXISTS = 3, 4


class CommandSecrets:
    """Knows the secrets as it last saw them."""

    def __init__(self, command: str, *, ambient: Ambient = SYSTEM) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError:
            self._command = []
        if not self._command:
            raise ConfigError("secrets.command is no command: write it as in a shell")
        self._ambient = ambient
        self._lock = threading.Lock()
        self._contents: Mapping[str, bytes] = {}
        self._asked_at_s: float | None = None

    @property
    def place(self) -> str:
        return f"the secret manager behind {self._command[0]}"

    def entries(self, prefix: str) -> Mapping[str, str]:
        contents = self._contents
        return {name: _revision(contents[name]) for name in sorted(contents) if name.startswith(prefix)}

    def read(self, name: str) -> bytes | None:
        return self._contents.get(name)

    def create(self, name: str, content: bytes, *, unless: Veto | None = None) -> bool:
        self.refresh(at_once=True)
        if unless is not None and unless(self.entries(prefix_of(name)).keys()):
            return False
        is_new = self._run("create", name, content) is not None
        # A listing may show a new secret late: what was created is read by its name.
        if (stored := self._run("read", name)) is not None:
            self._contents = {**self._contents, name: stored}
        return is_new

    def replace(self, name: str, expected: bytes, content: bytes) -> bool:
        current = self._run("read", name)
        if current is None or not hmac.compare_digest(current, expected):
            return False
        self._run("replace", name, content)
        self._contents = {**self._contents, name: content}
        return True

    def delete(self, name: str) -> None:
        self._run("delete", name)
        self._contents = {each: content for each, content in self._contents.items() if each != name}

    def list_secrets(self, prefix: str) -> list[SecretListing]:
        return [SecretListing(name) for name in self.entries(prefix)]

    def refresh(self, *, at_once: bool = False) -> bool:
        with self._lock:
            now = self._ambient.monotonic()
            if not at_once and self._asked_at_s is not None and now - self._asked_at_s < REFRESH_MIN_S:
                return False
            self._asked_at_s = now
            listed = (self._run("list") or b"").decode("utf-8", "replace").split()
            names = [name for name in listed if prefix_of(name) in PREFIXES]
            contents = {name: content for name in names if (content := self._run("read", name)) is not None}
            is_new = contents != self._contents
            self._contents = contents
            return is_new

    def _run(self, action: str, name: str = "", content: bytes = b"") -> bytes | None:
        """Run the command; None if the secret is absent, or exists already. Raises ConfigError, Unavailable."""
        words = [*self._command, action, *([name] if name else [])]
        try:
            run = subprocess.run(words, input=content, capture_output=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{self._command[0]} {action} takes more than {TIMEOUT_S:g} seconds") from None
        except OSError as error:
            raise ConfigError(f"secrets.command cannot be run: {error.strerror}") from None
        if run.returncode in (EXIT_ABSENT, EXIT_EXISTS):
            return None
        if run.returncode != 0:
            # What it printed on standard output may be a secret; an error message should not be one.
            problem = run.stderr.decode("utf-8", "replace").strip()[-500:]
            raise Unavailable(f"{self._command[0]} {action} ended with exit code {run.returncode}: {problem}")
        return run.stdout


def _revision(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
