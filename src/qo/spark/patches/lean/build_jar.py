"""Build lean.jar from the sources in this directory, with the compiler that comes with Spark.

    python -m qo.spark.patches.lean.build_jar [PATH]

The same sources give the same bytes.
"""

# Spark's JVM, through py4j, has no types.
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
# Hadoop loads these for YARN and MapReduce; nothing on a single machine needs them.
EMPTY = ("mapred-default.xml", "yarn-default.xml")
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # A fixed one, for the same bytes every time.


def contents(jvm: Any) -> dict[str, bytes]:
    """Return the content of each file in the jar, by name."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE.read_text())
    compiled = compiler.getBytecodes()
    files = {f"{name.replace('.', '/')}.class": bytes(compiled[name]) for name in compiled}
    files[SETTINGS.name] = SETTINGS.read_bytes()
    return files | dict.fromkeys(EMPTY, b"<configuration/>\n")


def write(files: dict[str, bytes], path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as jar:
        for name, content in sorted(files.items()):
            jar.writestr(zipfile.ZipInfo(name, TIMESTAMP), content)


def main(arguments: list[str]) -> None:
    from pyspark.java_gateway import launch_gateway

    gateway: Any = launch_gateway()
    try:
        write(contents(gateway.jvm), Path(arguments[0]) if arguments else JAR)
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
