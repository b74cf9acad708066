"""Threads may decode the first Struct of a type at the same time."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import FrameType
from typing import Any

import msgspec
import pytest

import qo
from qo.core import lifecycle

pytestmark = pytest.mark.fast


LAYERS = ("qo.core", "qo.store", "qo.queue", "qo.worker", "qo.dispatcher")


# Begins as a dispatcher does that finds a pipeline: all its loops read the same jobs at once.
RACE = """
import sys, threading
import msgspec
from qo.core.pipeline.dag import Job
sys.setswitchinterval(1e-6)
document = {
    "name": "x", "activation": "reactive", "runtime": "spark", "operator": "sql",
    "inputs": [{"from": {"job": "a"}}], "outputs": 1,
}
together = threading.Barrier(12)
read = []
def go():
    together.wait()
    read.append(msgspec.convert(document, Job))
threads = [threading.Thread(target=go) for _ in range(12)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(read))
"""


def test_threads_that_read_the_first_of_a_kind_together_all_read_it() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "12\n"), done.stderr


def test_every_struct_that_is_read_is_known_once_its_module_is_loaded() -> None:
    for module in pkgutil.walk_packages(qo.__path__, "qo."):
        if module.name.startswith(LAYERS) and ".migrations" not in module.name:
            importlib.import_module(module.name)
    kinds = [each for each in _below(msgspec.Struct) if each.__module__.startswith(LAYERS)]
    commands = {lifecycle.Command, *_below(lifecycle.Command)}  # Never written down, and never read.
    read = [each for each in kinds if each not in commands and each.__name__ != "_Part"]
    assert len(read) > 20
    assert [each for each in read if _looked_at(each)] == []

    class New(msgspec.Struct):
        number: int

    assert _looked_at(New)


def _looked_at(kind: type) -> bool:
    """Whether msgspec has to find out about the fields of the Struct now."""
    asked: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            asked.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        msgspec.json.Decoder(kind)
    finally:
        sys.setprofile(None)
    return "get_class_annotations" in asked


def _below(kind: type) -> list[type]:
    return [each for own in kind.__subclasses__() for each in (own, *_below(own))]
