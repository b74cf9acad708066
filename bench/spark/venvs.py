"""Virtual environments of other systems: made when first needed, kept, and apart from the project's own.

They share the project's PySpark, so that all sides run the very same Spark, but for one that does not know it yet.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from bench.spark.talking import ROOT

HOME = ROOT / ".bench-venvs"
SHARED = ("pyspark", "py4j")
# What to install. Prefect's server does not start with the newest FastAPI, nor Dagster's storage with the newest
# SQLAlchemy, which their requirements allow.
PEERS = {
    "dagster": ["dagster"],
    "dagster-postgres": ["dagster", "dagster-postgres", "sqlalchemy<2.1"],
    "prefect": ["prefect", "fastapi<0.130"],
    "delta-spark": ["delta-spark==4.4.0", "pyspark==4.2.*"],
}
OWN_SPARK = {"delta-spark"}  # There is none for the project's Spark.
WITHIN_S = 300.0


def python_of(package: str) -> str:
    """The interpreter of an environment with this package, as the package index had it when it was made."""
    home = HOME / package
    python = home / "bin" / "python"
    done = home / ".done"
    if not done.exists():
        _uv("venv", "--clear", "--python", sys.executable, str(home))
        _uv("pip", "install", "--python", str(python), *PEERS[package])
        if package not in OWN_SPARK:
            _share(home)
        done.touch()
    return str(python)


def version_of(package: str, environment: str | None = None) -> str:
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(
        [python_of(environment or package), "-c", asked], check=True, capture_output=True, text=True
    ).stdout.strip()


def _uv(*args: str) -> None:
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([str(uv), "--quiet", *args], check=True, timeout=WITHIN_S, cwd=ROOT)


def _share(home: Path) -> None:
    """Only these packages: of all others, it has its own."""
    (packages,) = home.glob("lib/python*/site-packages")
    for name in SHARED:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.submodule_search_locations
        (packages / name).symlink_to(found.submodule_search_locations[0])
