"""Workers that commands of the user's start and end."""

from __future__ import annotations

import json
import stat
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.scaling import WorkerState
from qo.scaler.launchers.command_launcher import CommandLauncher, parse_list
from qo.scaler.launchers.launcher import LaunchError, WorkerSpec

SPEC = WorkerSpec("python", 4, 30.0, "qo:1", "1Gi", 2.0)

# Keeps its workers in a file, as a cloud would keep machines.
PROGRAM = """\
import json, os, sys
path, verb, *names = sys.argv[1:]
workers = json.load(open(path)) if os.path.exists(path) else {}
for name in names:
    if verb == "start":
        facts = {key: value for key, value in os.environ.items() if key.startswith("LAUNCH_") or key == "QO_WORKER_ID"}
        workers.setdefault(name, {"name": name, "state": "ready", "uid": facts["QO_WORKER_ID"], "facts": facts})
    elif verb == "drain":
        workers[name]["state"] = "draining"
    elif verb == "kill":
        workers.pop(name, None)
json.dump(workers, open(path, "w"))
if verb == "list":
    print(json.dumps([{k: v for k, v in each.items() if k != "facts"} for each in workers.values()]))
"""


@pytest.fixture
def launcher(tmp_path: Path) -> CommandLauncher:
    (tmp_path / "cloud.py").write_text(PROGRAM)
    own = [sys.executable, str(tmp_path / "cloud.py"), str(tmp_path / "workers.json")]
    return CommandLauncher(
        SPEC, start=[*own, "start"], list_=[*own, "list"], drain=[*own, "drain"], kill=[*own, "kill"]
    )


async def test_commands_start_list_drain_and_kill_workers(launcher: CommandLauncher, tmp_path: Path) -> None:
    assert await launcher.list() == []
    await launcher.start(1)
    await launcher.start(1)  # A command that is repeated does nothing.
    [worker] = await launcher.list()
    assert (worker.name, worker.place, worker.state) == ("python-1", 1, WorkerState.READY)
    assert worker.uid.startswith("python-1-")
    facts = json.loads((tmp_path / "workers.json").read_text())["python-1"]["facts"]
    assert facts == {
        "LAUNCH_RUNTIME": "python",
        "LAUNCH_SLOTS": "4",
        "LAUNCH_DRAIN_S": "30",
        "LAUNCH_IMAGE": "qo:1",
        "LAUNCH_MEMORY": "1Gi",
        "LAUNCH_CPU": "2",
        "QO_WORKER_ID": worker.uid,
    }
    await launcher.drain(worker)
    assert [each.state for each in await launcher.list()] == [WorkerState.DRAINING]
    await launcher.kill(worker)
    assert await launcher.list() == []


async def test_a_command_that_fails_hangs_or_is_missing_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "plain").chmod(stat.S_IRUSR)
    cases = {
        ("sh", "-c", "echo no machines left >&2; exit 3"): "ended with 3: no machines left",
        ("sh", "-c", "sleep 60"): "took longer than 0.2 s",
        (str(tmp_path / "plain"),): "cannot be run: .*Permission denied",
        ("sh", "-c", "echo hello"): "must print JSON, and prints 'hello",
    }
    for command, message in cases.items():
        launcher = CommandLauncher(SPEC, start=command, list_=command, drain=command, kill=command, limit_s=0.2)
        with pytest.raises(LaunchError, match=message):
            await launcher.list()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("{}", "must print a list"),
        ("[1]", "each needs a name such as python-1, and one is 1"),
        ('[{"name": "python-0", "state": "ready"}]', "each needs a name such as python-1"),
        ('[{"name": "spark-1", "state": "ready"}]', "each needs a name such as python-1"),
        ('[{"name": "python-1", "state": "up"}]', "the state of python-1 must be one of starting, ready"),
        ('[{"name": "python-1", "state": "ready", "uid": 3}]', "uid and detail of python-1 must be texts"),
        (
            '[{"name": "python-1", "state": "ready"}, {"name": "python-1", "state": "dead"}]',
            "names a worker twice",
        ),
    ],
)
def test_a_list_that_is_wrong_says_what_is_wrong(output: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_list(SPEC, output.encode())


@given(st.binary(max_size=60))
def test_whatever_a_command_prints_is_a_list_or_an_error_in_words(output: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(parse_list(SPEC, output), list)
