# ruff: noqa: F811
"""A function in a real sandbox: what it does not see, what it may write, and what is done where there is none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from qo.core.pipeline.states import Outcome
from qo.errors import Refused
from qo.function import sandbox as sandboxes
from qo.function.function_messages import Stop
from qo.function.sandbox import Access, Bubblewrap, Namespaces, PlainProcess, Sandbox, find_sandbox, probe
from support.dispatcher.function_sites import eventually
from support.dispatcher.invocations import TOKEN, run, scratch  # noqa: F401

USABLE = [each for each in (Namespaces(), Bubblewrap()) if probe(each) is None]
LOOK = """
import json, os
def attempt(look):
    try:
        return look()
    except Exception as error:
        return type(error).__name__
print(json.dumps({"result": attempt(lambda: %s)}))
"""


@pytest.fixture(params=USABLE or [None], ids=lambda each: "none" if each is None else each.name)
def box(request: pytest.FixtureRequest) -> Sandbox:
    """Each sandbox that this machine offers. Where it offers none, that is said, and nothing runs."""
    if request.param is None:
        with pytest.raises(Refused, match="no sandbox"):
            find_sandbox()
        pytest.skip("this machine offers no sandbox")
    return request.param


def seen(code: str, box: Sandbox, access: Access | None = None, **changed: object) -> object:
    verdict = run(LOOK % code, sandbox=box, access=access, **changed)
    assert verdict.reply is not None, verdict.error
    return verdict.reply.result


def test_a_sandboxed_function_gets_its_request_and_its_reply_counts(box: Sandbox) -> None:
    verdict = run(
        "import json, sys, lib; print(json.dumps({'result': [json.load(sys.stdin)['task_id'], lib.WORD]}))",
        sandbox=box,
    )
    assert verdict.reply is not None, verdict.error
    assert verdict.reply.result == ["t1", "vendored"]


def test_a_sandboxed_function_reads_no_file_of_the_dispatchers_user(box: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "admin.token"
    secret.write_text("qo_secret")
    assert seen(f"open({str(secret)!r}).read()", box) == "FileNotFoundError"
    paths = [str(Path.home()), "/root", "/home", "/etc/passwd", "/etc/shadow", "/var", "/run", str(Path.cwd())]
    assert not any(Path(sys.base_prefix).is_relative_to(each) for each in paths)
    assert seen(f"[each for each in {paths!r} if os.path.exists(each)]", box) == []


def test_a_sandboxed_function_cannot_leave_through_what_it_sees(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    escapes = [
        f"open('/proc/1/root{tmp_path}/outside').read()",
        f"open('/proc/self/root{tmp_path}/outside').read()",
        "os.chroot('/')",
        "os.mkdir('/new')",
        "open('/usr/new', 'w')",
        "open('/code/new', 'w')",
        "open('/proc/sys/kernel/core_pattern', 'w')",
        "os.setuid(0)",
    ]
    tried = seen(f"[attempt(lambda: eval(each)) for each in {escapes!r}]", box)
    assert isinstance(tried, list)
    assert set(tried) <= {"FileNotFoundError", "PermissionError", "OSError"}, tried


def test_a_sandboxed_function_sees_no_other_process_and_no_variable_of_them(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QO_WORKER_TOKEN", "secret-of-the-dispatcher")
    processes = seen("sorted(int(each) for each in os.listdir('/proc') if each.isdigit())", box)
    assert isinstance(processes, list)
    assert len(processes) <= 3
    everything = seen(
        "[open(f'/proc/{each}/environ').read() for each in os.listdir('/proc') if each.isdigit() "
        "and os.access(f'/proc/{each}/environ', os.R_OK)]",
        box,
    )
    assert "secret-of-the-dispatcher" not in str(everything)
    assert seen(f"os.kill({os.getpid()}, 0)", box) == "ProcessLookupError"


def test_the_allow_list_decides_the_variables_of_a_sandboxed_function(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "not offered")
    variables = seen(
        "dict(os.environ)", box, env_allowlist=["API_BASE", "API_KEY"], offered={"API_BASE": "b", "OTHER": "o"}
    )
    assert isinstance(variables, dict)
    assert set(variables) - {"LC_CTYPE", "PWD"} == {
        "PATH", "HOME", "TMPDIR", "QO_DISPATCHER_URL", "QO_TASK_TOKEN", "QO_RUN", "API_BASE",
    }  # fmt: skip


@pytest.fixture
def server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_sandboxed_function_reaches_the_network_only_if_it_is_allowed(box: Sandbox, server: int) -> None:
    connect = f"__import__('socket').create_connection(('127.0.0.1', {server}), 5).close()"
    assert seen(connect, box) in ("ConnectionRefusedError", "OSError")
    assert seen(connect, box, Access(network=True)) is None


def test_a_sandboxed_function_writes_its_outputs_and_nowhere_else(box: Sandbox, tmp_path: Path) -> None:
    inputs, output = tmp_path / "input", tmp_path / "data" / "output"
    inputs.mkdir()
    (inputs / "part").write_text("rows")
    access = Access(read=(inputs,), write=(output,))
    copy = f"open('{output}/part', 'w').write(open('{inputs}/part').read())"
    assert seen(copy, box, access) == 4
    assert (output / "part").read_text() == "rows"
    assert (output / "part").stat().st_uid == output.stat().st_uid == os.geteuid()
    assert seen(f"open('{inputs}/part', 'w')", box, access) in ("PermissionError", "OSError")
    assert seen(f"os.listdir('{tmp_path}')", box, access) == ["data", "input"]


@pytest.mark.parametrize("odd", ["os.symlink('/etc/shadow', '{0}/part')", "os.mkfifo('{0}/part')"])
def test_an_output_that_is_no_plain_file_is_refused_and_removed(box: Sandbox, tmp_path: Path, odd: str) -> None:
    output = tmp_path / "output"
    verdict = run(LOOK % odd.format(output), sandbox=box, access=Access(write=(output,)))
    assert (verdict.outcome, "no plain file" in (verdict.error or "")) == (Outcome.FATAL, True)
    assert list(output.iterdir()) == []


def test_what_a_sandboxed_function_leaves_running_is_killed(box: Sandbox, tmp_path: Path) -> None:
    output = tmp_path / "output"
    leave = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        open('{output}/beat', 'w').close()
        time.sleep(0.01)
while not os.path.exists('{output}/beat'):
    time.sleep(0.01)
print('{{}}')
"""
    assert run(leave, sandbox=box, access=Access(write=(output,))).outcome is Outcome.SUCCESS
    (output / "beat").unlink()
    listing = subprocess.run(["ps", "-ef"], capture_output=True, text=True).stdout if which("ps") else ""
    assert str(output) not in listing
    assert list(output.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit(3)", "status 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("1/0", "ZeroDivision"),
    ],
)
def test_the_end_of_a_sandboxed_function_is_told_as_it_was(box: Sandbox, code: str, why: str) -> None:
    verdict = run(code, sandbox=box)
    assert (verdict.outcome, why in (verdict.error or "")) == (Outcome.FATAL, True), verdict.error


def test_a_sandboxed_function_is_stopped_and_leaves_no_trace(box: Sandbox, scratch: Path) -> None:
    verdict = run("import time; time.sleep(600)", sandbox=box, watch=lambda: Stop.CANCELLED)
    assert verdict.stopped is Stop.CANCELLED
    late = run("import time; time.sleep(600)", sandbox=box, timeout_s=0.5)
    assert "0.5 seconds" in (late.error or "")
    assert list(scratch.iterdir()) == []


def test_a_function_has_no_more_memory_than_its_runtime(box: Sandbox) -> None:
    assert seen("len(bytearray(2**30))", box, memory_bytes=2**29) == "MemoryError"


def test_secrets_that_a_sandboxed_function_prints_are_in_no_error(box: Sandbox) -> None:
    verdict = run(
        "import os, sys; sys.exit(os.environ['QO_TASK_TOKEN'] + os.environ['API_KEY'])",
        sandbox=box,
        env_allowlist=["API_KEY"],
        offered={"API_KEY": "a-key-of-the-operator"},
    )
    assert verdict.outcome is Outcome.FATAL
    assert TOKEN not in (verdict.error or "")
    assert "a-key-of-the-operator" not in (verdict.error or "")


def test_a_sandbox_ends_with_the_process_that_started_it(box: Sandbox, tmp_path: Path) -> None:
    output = tmp_path / "output"
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from qo.function.sandbox import Access
from support.dispatcher.invocations import run
from qo.function import sandbox
run("open('{output}/begun', 'w').close()\\nimport time; time.sleep(600)", sandbox=sandbox.find_sandbox(),
    access=Access(write=(Path('{output}'),)))
"""
    caller = subprocess.Popen([sys.executable, "-c", script])
    try:
        eventually((output / "begun").exists)
    finally:
        caller.kill()
        caller.wait()
    eventually(lambda: not _mentioning(str(output)))


def _mentioning(text: str) -> list[str]:
    lines = [Path(each, "cmdline") for each in Path("/proc").glob("[0-9]*")]
    found: list[str] = []
    for each in lines:
        try:
            command = each.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


def test_a_plain_process_does_not_pass_for_a_sandbox() -> None:
    assert probe(PlainProcess()) is not None


def test_where_no_sandbox_works_each_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Namespaces):
        def wrap(self, command: object, home: Path, access: Access) -> list[str]:
            return [sys.executable, "-c", "import sys; sys.exit('unshare: not permitted')"]

    monkeypatch.setattr(sandboxes, "Namespaces", Broken)
    monkeypatch.setattr(sandboxes, "which_bubblewrap", lambda: None)
    sandboxes._examine.cache_clear()
    try:
        with pytest.raises(Refused, match=r"bwrap is not installed.*unshare: not permitted"):
            find_sandbox()
    finally:
        sandboxes._examine.cache_clear()


@pytest.mark.fast
def test_bubblewrap_is_told_what_to_show_and_what_to_hide(tmp_path: Path) -> None:
    access = Access(read=(Path("/data/in"),), write=(Path("/data/out"),))
    argv = Bubblewrap("/usr/bin/bwrap").wrap(["python", "x"], tmp_path, access)
    text = " ".join(argv)
    assert argv[0] == "/usr/bin/bwrap"
    assert argv[-2:] == ["python", "x"]
    for part in (
        "--unshare-all",
        "--die-with-parent",
        "--cap-drop ALL",
        "--uid 65534",
        "--tmpfs /tmp",
        f"--ro-bind {tmp_path}/code /code",
        "--ro-bind /data/in /data/in",
        "--bind /data/out /data/out",
        "--chdir /tmp",
    ):
        assert part in text
    assert "--share-net" not in argv
    assert "--share-net" in Bubblewrap().wrap([], tmp_path, Access(network=True))
    for hidden in ("/root", "/home", "/var", "/etc"):
        assert hidden not in argv
