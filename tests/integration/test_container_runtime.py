# ruff: noqa: F811
"""The runtime ``container``, with a stand-in for the engine that speaks ``docker run`` and runs a process.

The command lines are what is shown here, and what becomes of their end; an engine is not.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import Outcome
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.runtimes.choice import choose_functions
from qo.dispatcher.runtimes.containers import ContainerLimits, Containers, memory_bytes, run_command
from qo.dispatcher.runtimes.invoker import Invoker
from qo.dispatcher.state.database import State
from qo.function.function_messages import Stop, Verdict
from qo.function.sandbox import Access
from qo.pipeline.registry import configured_registry
from support.dispatcher.function_sites import Site, eventually
from support.dispatcher.invocations import TOKEN, invocation_of, scratch  # noqa: F401
from support.dispatcher.states import clock, state  # noqa: F401

ENGINE = '''#!{python} -IS
"""docker run and docker kill, as far as they are used: the command is a process, and /qo a directory beside."""
import json, os, signal, subprocess, sys
home, verb, arguments = {home!r}, sys.argv[1], sys.argv[2:]
with open(home + "/calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if verb == "kill":
    os.kill(int(open(home + "/" + arguments[0]).read()), signal.SIGKILL)
    sys.exit(0)
FLAGS = {{"--rm"}}
options, volumes = {{}}, {{}}
while arguments[0].startswith("-"):
    name = arguments.pop(0)
    value = "" if name in FLAGS else arguments.pop(0)
    options[name] = value
    if name == "--volume":
        source, target = value.split(":")[:2]
        volumes[target] = source
image, command = arguments[0], arguments[1:]
if image == "missing":
    sys.exit(125)
variables = dict(line.rstrip("\\n").split("=", 1) for line in open(options["--env-file"]))
for name in ("QO_REQUEST", "QO_RESULT"):
    variables[name] = variables[name].replace("/qo", volumes["/qo"], 1)
process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
with open(home + "/" + options["--name"], "w") as file:
    file.write(str(process.pid))
code = process.wait()
sys.exit(code if code >= 0 else 128 - code)
'''


@pytest.fixture
def engine(tmp_path: Path) -> str:
    home = tmp_path / "engine"
    home.mkdir()
    program = home / "docker"
    program.write_text(ENGINE.format(python=os.path.realpath(sys.executable), home=str(home)))
    program.chmod(0o755)
    return str(program)


def calls(engine: str) -> str:
    return Path(engine).with_name("calls").read_text()


def invocation(code: str, **config: Any) -> Invocation:
    command = [os.path.realpath(sys.executable), "-IS", "-c", code]
    made = invocation_of(b"")
    config = {"image": "score:7", "command": command} | config
    work = made.work.model_copy(update={"runtime": "container", "operator": "container", "config": config})
    return made.model_copy(update={"work": work})


def launch(
    engine: str,
    code: str,
    limits: ContainerLimits | None = None,
    watch: Callable[[], Stop | None] = lambda: None,
    **config: Any,
) -> Verdict:
    functions = Containers([engine], limits or ContainerLimits())
    verdict = functions.launch(invocation(code, **config), watch)
    assert verdict is not None
    return verdict


REPLIES = """
import json, os
request = json.load(open(os.environ["QO_REQUEST"]))
with open(os.environ["QO_RESULT"], "w") as file:
    json.dump({"result": [request["task_id"], os.environ["QO_TASK_ID"], sorted(os.environ)]}, file)
print("a line of log " * 200_000)
"""


def test_a_container_gets_its_request_and_its_result_file_is_its_reply(engine: str, scratch: Path) -> None:
    verdict = launch(engine, REPLIES)
    assert verdict.reply is not None, verdict.error
    asked, told, variables = verdict.reply.result
    assert (asked, told) == ("t1", "t1")
    assert set(variables) - {"LC_CTYPE"} == {
        "QO_DISPATCHER_URL", "QO_TASK_TOKEN", "QO_TASK_ID", "QO_ATTEMPT", "QO_LEASE_ID", "QO_REQUEST", "QO_RESULT",
    }  # fmt: skip
    assert list(scratch.iterdir()) == []


def test_no_secret_is_in_a_command_line_and_the_file_with_them_is_private(
    engine: str, tmp_path: Path, scratch: Path
) -> None:
    seen: list[int] = []

    def look() -> Stop | None:
        seen.extend(stat.S_IMODE(each.stat().st_mode) for each in scratch.glob("*/environment"))
        return None

    limits = ContainerLimits(offered={"API_KEY": "a-key-of-the-operator", "OTHER": "x"})
    functions = Containers([engine], limits, mint=lambda _: {"AWS_SESSION_TOKEN": "minted-for-this"})
    code = "import os, sys, time; time.sleep(0.5); sys.exit(str(dict(os.environ)))"
    verdict = functions.launch(invocation(code, env=["API_KEY"]), look)
    assert verdict is not None
    assert verdict.outcome is Outcome.FATAL
    assert "AWS_SESSION_TOKEN" in (verdict.error or "")
    assert "OTHER" not in (verdict.error or "")
    for secret in (TOKEN, "a-key-of-the-operator", "minted-for-this"):
        assert secret not in calls(engine)
        assert secret not in (verdict.error or "")
    assert set(seen) == {0o600}


@pytest.mark.parametrize(
    ("code", "outcome", "why"),
    [
        ("", Outcome.SUCCESS, ""),
        ("raise SystemExit(75)", Outcome.RETRYABLE, "status 75"),
        ("raise SystemExit(3)", Outcome.FATAL, "status 3"),
        ("1/0", Outcome.FATAL, "ZeroDivisionError"),
        ("import os; open(os.environ['QO_RESULT'], 'w').write('nonsense')", Outcome.FATAL, "JSON"),
        ("import os; os.symlink('/etc/passwd', os.environ['QO_RESULT'])", Outcome.FATAL, "result.json"),
    ],
)
def test_the_exit_code_of_a_container_decides(engine: str, code: str, outcome: Outcome, why: str) -> None:
    verdict = launch(engine, code)
    assert (verdict.outcome, why in (verdict.error or "")) == (outcome, True), verdict.error


def test_an_engine_that_fails_costs_an_attempt_not_the_task(engine: str) -> None:
    assert launch(engine, "", image="missing").outcome is Outcome.RETRYABLE
    assert launch("/nonexistent/docker", "").outcome is Outcome.RETRYABLE


def test_a_stopped_container_is_killed_by_its_name(engine: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def cancel() -> Stop | None:
        return Stop.CANCELLED if begun.exists() and begun.read_text() else None

    code = f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    assert launch(engine, code, watch=cancel).stopped is Stop.CANCELLED
    assert '["kill", "qo-t1-1"]' in calls(engine)
    eventually(lambda: not _is_alive(int(begun.read_text())))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_variable_that_is_not_offered_and_an_image_that_is_not_named_are_refused(engine: str) -> None:
    assert "does not offer" in (launch(engine, "", env=["API_KEY"]).error or "")
    assert "names no image" in (launch(engine, "", image=None).error or "")
    assert launch(engine, "", ContainerLimits(image="default:1"), image=None).outcome is Outcome.SUCCESS


@pytest.mark.fast
def test_the_limits_of_the_runtime_are_those_of_the_container() -> None:
    limits = ContainerLimits(memory="512Mi", cpus=1.5, network=False)
    access = Access(read=(Path("/data/in"),), write=(Path("/data/out"),))
    what, files = ["score:7", "go"], (Path("/h/env"), Path("/h/x"))
    argv = run_command(["podman", "--remote"], "qo-t-1", what, *files, access, limits)
    assert " ".join(argv) == (
        "podman --remote run --rm --name qo-t-1 --env-file /h/env --cap-drop ALL --security-opt no-new-privileges "
        "--pids-limit 512 --network none --memory 536870912 --cpus 1.5 --volume /h/x:/qo "
        "--volume /data/in:/data/in:ro --volume /data/out:/data/out score:7 go"
    )
    assert [memory_bytes(each) for each in ("7", "1K", "1Ki", "2G", "1Ti")] == [7, 1000, 1024, 2 * 10**9, 2**40]


@pytest.fixture
def invokers() -> Iterator[list[Invoker]]:
    made: list[Invoker] = []
    yield made
    for each in made:
        each.close()


WRITES = """
import json, os
request = json.load(open(os.environ["QO_REQUEST"]))
prefix = request["work"]["outputs"][0]["prefix"]
with open(prefix.removeprefix("file:") + "part-0.json", "w") as file:
    file.write("{}")
output = {"output": 0, "location": prefix, "files": ["part-0.json"], "rows": 1, "bytes": 2}
with open(os.environ["QO_RESULT"], "w") as file:
    json.dump({"outputs": [output]}, file)
"""


def test_a_container_job_takes_its_wake_up_to_a_commit(
    state: State, tmp_path: Path, engine: str, invokers: list[Invoker]
) -> None:
    command = [os.path.realpath(sys.executable), "-IS", "-c", WRITES]
    job = {"runtime": "container", "operator": "container", "config": {"image": "score:7", "command": command}}
    here = Site(state, tmp_path, "", **job, udf=None)
    tables = {"container": {"engine": engine, "parallel": 2}}
    settings = Settings(runtimes=settings_tables(tables), dispatcher=DispatcherSettings(data=here.data_root))
    runtime = configured_registry(settings.runtimes).get("container")
    functions = choose_functions(settings, runtime, state, KeyRing.open(tmp_path / "keys"))
    task_id = here.wake(queue="container")
    invoker = Invoker(
        state, here.ring, functions, data_root=here.data_root, url="http://127.0.0.1:1", queues=runtime.queues,
        parallel=runtime.parallel,
    )  # fmt: skip
    invokers.append(invoker)
    assert here.invoker().tick() == 0, "it is of another runtime"
    assert invoker.tick() == 1
    row = here.settled(task_id, "completed", "failed")
    assert (row["status"], row["last_error"]) == ("completed", None)


def settings_tables(tables: dict[str, Any]) -> Any:
    from qo.config.runtimes import RUNTIMES

    return RUNTIMES.accept(tables)
