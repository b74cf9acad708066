"""Makes the jar of this package from what lies beside it, with the compiler that comes with Spark.

    python -m qo.spark.patches.lean.build_jar [PATH]

The same sources make the same bytes.
"""

# What PySpark does not offer, its JVM does; none of that has types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

from qo.spark.patches.lean import JAR

HERE = Path(__file__).parent
SOURCE = HERE / "LocalFiles.java"
SETTINGS = HERE / "core-default.xml"
# Loaded by whatever needs them, and needed by nothing that runs on one machine.
EMPTY = ("mapred-default.xml", "yarn-default.xml")
ALWAYS = (1980, 1, 1, 0, 0, 0)


def contents(jvm: Any) -> dict[str, bytes]:
    """What the jar holds, by name."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE.read_text())
    compiled = compiler.getBytecodes()
    made = {f"{name.replace('.', '/')}.class": bytes(compiled[name]) for name in compiled}
    made[SETTINGS.name] = SETTINGS.read_bytes()
    return made | dict.fromkeys(EMPTY, b"<configuration/>\n")


def write(found: dict[str, bytes], path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as jar:
        for name, content in sorted(found.items()):
            jar.writestr(zipfile.ZipInfo(name, ALWAYS), content)


def main(arguments: list[str]) -> None:
    from pyspark.java_gateway import launch_gateway

    gateway: Any = launch_gateway()
    try:
        write(contents(gateway.jvm), Path(arguments[0]) if arguments else JAR)
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
