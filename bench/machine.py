"""What the figures were taken on: without it they mean nothing to others."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("pyspark", "sqlalchemy", "aiohttp", "huey", "celery", "rq", "dramatiq", "buquet")


def described() -> dict[str, object]:
    return {
        "taken_on": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _processor() -> str:
    said = Path("/proc/cpuinfo")
    lines = said.read_text().splitlines() if said.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
