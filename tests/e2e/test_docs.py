"""Every example in the documentation runs.

In a page, a ``python`` block that begins with ``# name.py`` is written to that file and any other is run. ``yaml`` and
``toml`` blocks that begin with a file name are written, too; of the others, pipelines are read and settings are
loaded. Of a ``console`` block, the lines after ``$`` are run one after the other, and must succeed. One that ends with
``&`` goes on beside the rest of the page. What stands below a command is what it prints, in this order, among other
things: ids and times may differ, ``...`` stands for anything, and a command that does not say so yet, or fails because
what it asks for is not there yet, is run again for a while. All blocks of a page share a directory, with an empty
embedded store, and the examples of this project.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from qo.config import origins
from qo.errors import Refused
from qo.function.sandbox import find_sandbox
from qo.pipeline.parsing import read
from support.servers.ports import free_ports
from support.spark import session

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console|yaml|json|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml|yaml))\n")
PEOPLE, WORKERS, QUEUE = (
    "127.0.0.1:8470",
    "127.0.0.1:8471",
    "127.0.0.1:8460",
)  # As the pages have them; here, any free ports.
PATIENCE_S = 60.0
VARYING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:Z| UTC)"
)


def examples(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(page.read_text())]


ON_SPARK = {
    "analytics.md",
    "datasets.md",
    "pipelines.md",
    "quality.md",
    "rows-by-key.md",
    "spark.md",
    "streams.md",
    "up.md",
}
LONG = {
    "analytics.md",
    "datasets.md",
    "pipelines.md",
    "quality.md",
    "rows-by-key.md",
    "security.md",
    "sources.md",
    "spark.md",
    "streams.md",
    "tables.md",
    "testing.md",
    "up.md",
    "workers.md",
}


ON_A_BUCKET = ["direct-dispatch.md", "flows.md", "http-api.md", "outbox.md", "retention.md", "workers.md"]


def marks(page: Path) -> list[pytest.MarkDecorator]:
    chosen = ((pytest.mark.spark, ON_SPARK), (pytest.mark.long, LONG))
    return [mark for mark, names in chosen if page.name in names]


def test_every_pipeline_and_every_setting_in_a_page_can_be_read(tmp_path: Path):
    blocks = [(page.name, language, text) for page in PAGES for language, text in examples(page)]
    pipelines = [(page, text) for page, language, text in blocks if language == "yaml" and "\njobs:" in text]
    for page, text in pipelines:
        if not text.startswith("# invalid"):
            read(text, file=page)
    settings = [(page, text) for page, language, text in blocks if language == "toml"]
    for page, text in settings:
        (tmp_path / page).write_text(text)
        origins.load(environ={}, cwd=tmp_path, config_path=tmp_path / page)
    assert pipelines
    assert settings


@pytest.mark.timeout(900)  # Many short processes; some pages start a dispatcher.
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=marks(page), id=page.name) for page in PAGES if examples(page)],
)
def test_the_examples_of_every_page_run(page: Path, tmp_path: Path):
    if page == ROOT / "docs/guides/functions.md":
        skip_without_sandbox()
    with desk(tmp_path) as work:
        work.run_page(page)


def skip_without_sandbox() -> None:
    try:
        find_sandbox()
    except Refused as error:
        pytest.skip(str(error))


@pytest.mark.s3
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ON_A_BUCKET)
def test_the_examples_of_the_queue_run_on_a_bucket_as_well(name: str, tmp_path: Path, s3_env: dict[str, str]):
    with desk(tmp_path) as work:
        work.environ |= s3_env
        work.run(["qo", "doctor"])
        work.run_page(ROOT / "docs" / "guides" / name)


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Each command of a block, with the lines that follow it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif found and line.strip():
            found[-1][1].append(line)
    return found


class Desk:
    """Where the examples of one page are run."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        people, workers, queue = free_ports(3)
        self.ports = {PEOPLE: f"127.0.0.1:{people}", WORKERS: f"127.0.0.1:{workers}", QUEUE: f"127.0.0.1:{queue}"}
        self.beside: list[subprocess.Popen[bytes]] = []
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("QO_", "S3_", "AWS_"))}
        self.environ |= {
            "PATH": f"{Path(sys.executable).parent}:{self.environ['PATH']}",
            "NO_COLOR": "1",
            "QO_DISPATCHER_LISTEN": self.ports[PEOPLE],
            "QO_DISPATCHER_INTERNAL_LISTEN": self.ports[WORKERS],
            "QO_SERVE_LISTEN": self.ports[QUEUE],
            "QO_DISPATCHER_RECONCILE_S": "1",
            "QO_SHUTDOWN_GRACE_S": "1",
            **session.ENVIRONMENT,
        }

    def placed(self, text: str) -> str:
        for written, here in self.ports.items():
            text = text.replace(written, here)
        return text

    def run_page(self, page: Path) -> None:
        shutil.copytree(ROOT / "examples", self.cwd / "examples")
        for language, text in examples(page):
            named = FILE.match(text)
            if named is not None:
                (self.cwd / named[1]).parent.mkdir(exist_ok=True)
                (self.cwd / named[1]).write_text(self.placed(text))
            elif language == "python":
                self.run([sys.executable, "-c", self.placed(text)])
            elif language == "console":
                for line, printed in commands(text):
                    self.enter(self.placed(line), printed)

    def enter(self, line: str, printed: list[str]) -> None:
        if line.endswith("&"):
            self.start(line.removesuffix("&").strip())
            return
        if not printed:
            self.run(["bash", "-c", line])
            return
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = self.done(["bash", "-c", line])
            said = done.stdout + done.stderr
            if done.returncode == 0 and says(said, printed):
                return
            assert time.monotonic() < deadline, f"{line}\n\n{said}\n\ndoes not say\n\n" + "\n".join(printed)

    def start(self, line: str) -> None:
        log = self.cwd / f"beside-{len(self.beside)}.log"
        with log.open("wb") as told:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.cwd,
                env=self.environ,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )
        self.beside.append(process)
        if line.startswith("qo serve"):
            await_ready(f"http://{self.ports[QUEUE]}/readyz", process, log)
        if line.startswith("qo dispatcher"):
            url = f"http://{self.ports[PEOPLE]}"
            await_ready(f"{url}/readyz", process, log)
            self.environ["QO_DISPATCHER_URL"] = (
                url  # Commands that ask it start sooner than those that open its state.
            )

    def run(self, command: list[str]) -> str:
        done = self.done(command)
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def done(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=self.cwd, env=self.environ, capture_output=True, text=True, timeout=180)

    def close(self) -> None:
        for process in reversed(self.beside):
            process.send_signal(signal.SIGTERM)
        for process in self.beside:
            try:
                process.wait(timeout=PATIENCE_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def desk(cwd: Path) -> Iterator[Desk]:
    made = Desk(cwd)
    try:
        yield made
    finally:
        made.close()


def says(said: str, printed: list[str]) -> bool:
    """Whether all lines are there, in their order."""
    lines = iter(plain(line) for line in said.splitlines())
    return all(any(pattern(line).fullmatch(each) for each in lines) for line in printed)


def plain(line: str) -> str:
    return " ".join(VARYING.sub("~", line).split())


def pattern(line: str) -> re.Pattern[str]:
    return re.compile(re.escape(plain(line)).replace(re.escape("..."), ".*"))


def await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
