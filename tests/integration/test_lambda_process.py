# ruff: noqa: F811
"""One function as a process of this machine: what it gets, what it may answer, how it is stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qo.api.contract.task import Outcome
from qo.function.execution import Conditions
from qo.function.function_messages import Stop
from support.dispatcher.function_sites import eventually
from support.dispatcher.invocations import TOKEN, invocation_of, run, run_invocation, scratch  # noqa: F401
from support.dispatcher.states import Clock, clock, state  # noqa: F401
from support.dispatcher.zips import MAIN, bundle


def test_a_function_gets_its_invocation_and_its_answer_counts() -> None:
    verdict = run("""
import json, sys
asked = json.load(sys.stdin)
print(json.dumps({"result": [asked["task_id"], asked["work"]["job"], asked["capability_token"]]}))
""")
    assert verdict.outcome is Outcome.SUCCESS
    assert verdict.reply is not None
    assert verdict.reply.result == ["t1", "clean", TOKEN]


def test_a_bundle_brings_its_own_modules_and_sees_none_of_ours() -> None:
    verdict = run("""
import json, lib
found = []
for name in ("qo", "sqlalchemy", "botocore", "cryptography"):
    try:
        __import__(name)
        found.append(name)
    except ImportError:
        pass
print(json.dumps({"result": [lib.WORD, found]}))
""")
    assert verdict.reply is not None, verdict.error
    assert verdict.reply.result == ["vendored", []]


def test_nothing_of_our_environment_reaches_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "QO_WORKER_TOKEN", "QO_STATE", "HOME", "API_KEY", "LANG", "PYTHONPATH"):
        monkeypatch.setenv(name, "secret-of-the-dispatcher")
    verdict = run(
        "import json, os; print(json.dumps({'result': dict(os.environ)}))",
        env_allowlist=["API_BASE", "API_KEY", "MISSING"],
        offered={"API_BASE": "http://api", "OTHER": "not asked for"},
    )
    assert verdict.reply is not None, verdict.error
    seen = verdict.reply.result
    assert "secret-of-the-dispatcher" not in str(seen)
    # LC_CTYPE is what Python itself sets in the C locale.
    assert set(seen) - {"LC_CTYPE"} == {
        "PATH", "HOME", "TMPDIR", "QO_DISPATCHER_URL", "QO_TASK_TOKEN", "QO_RUN", "API_BASE",
    }  # fmt: skip


def test_a_function_inherits_no_open_files(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"), (tmp_path / "state.db").open("w") as kept:
        os.set_inheritable(kept.fileno(), True)
        verdict = run("""
import json, os
print(json.dumps({"result": [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n not in "012"
    and os.path.exists(f"/proc/self/fd/{n}")]}))
""")
    assert verdict.reply is not None, verdict.error
    assert not any(str(tmp_path / "state.db") in each for each in verdict.reply.result)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "not one JSON object"),
        ("print('hello')", "not one JSON object"),
        ("print('[]')", "not one JSON object"),
        ("print('{}{}')", "not one JSON object"),
        ("print('{}'); print('{}')", "not one JSON object"),
        ('print(\'{"outcome": "cancelled"}\')', "outcome"),
        ("print('{\"surprise\": 1}')", "surprise"),
        ("print('{\"outputs\": [1]}')", "outputs"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "not one JSON object"),
        ("print('[' * 100_000)", "not one JSON object"),
        ("raise SystemExit(3)", "status 3"),
        ("1/0", "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("print('{}'); raise SystemExit(1)", "status 1"),
    ],
)
def test_anything_but_one_sound_object_and_a_clean_end_is_fatal(code: str, why: str) -> None:
    verdict = run(code)
    assert (verdict.outcome, verdict.reply) == (Outcome.FATAL, None)
    assert why in (verdict.error or "")


def test_a_function_can_ask_for_another_attempt() -> None:
    verdict = run("""print('{"outcome": "retryable_error", "error": "try later", "retry_after_s": 5}')""")
    assert (verdict.outcome, verdict.error) == (Outcome.RETRYABLE, "try later")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_cut(stream: str) -> None:
    verdict = run(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)", timeout_s=3)
    assert verdict.outcome is Outcome.FATAL
    assert len(verdict.error or "") < 10_000


def test_a_large_answer_within_the_limit_is_taken_whole() -> None:
    verdict = run("import json; print(json.dumps({'result': 'x' * 1_000_000}))")
    assert verdict.reply is not None, verdict.error
    assert len(verdict.reply.result) == 1_000_000


def test_a_function_that_does_not_end_is_ended() -> None:
    verdict = run("import time; time.sleep(600)", timeout_s=0.5)
    assert verdict.outcome is Outcome.FATAL
    assert "0.5 seconds" in (verdict.error or "")


def test_closing_its_output_does_not_hide_a_function() -> None:
    verdict = run("import os, time; os.close(1); os.close(2); time.sleep(600)", timeout_s=0.5)
    assert "0.5 seconds" in (verdict.error or "")


FORK = """
import os, sys, time, json
asked = json.load(sys.stdin)
ready, told = os.pipe()
if os.fork() == 0:
    %s
    os.write(told, str(os.getpid()).encode())
    time.sleep(600)
    os._exit(0)
child = int(os.read(ready, 20))
print(json.dumps({"result": child}))
sys.stdout.flush()
"""


@pytest.mark.parametrize(
    "escape",
    [
        "pass",
        "os.setsid()",
        "os.setsid()\n    if os.fork(): os._exit(0)",
        "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]",
        "os.close(0); os.close(1); os.close(2)",
    ],
)
def test_what_a_function_leaves_running_is_killed(escape: str) -> None:
    verdict = run(FORK % escape)
    assert verdict.reply is not None, verdict.error
    child = verdict.reply.result
    eventually(lambda: not _is_alive(child))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "code",
    [
        "print('{}')",
        "raise SystemExit(1)",
        "import os; os.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a/b', 0); os.chmod('a', 0); print('{}')",
        "import os; os.symlink('/etc', 'etc'); print('{}')",
        "import time; time.sleep(600)",
    ],
)
def test_no_trace_of_a_function_is_left_on_disk(code: str, scratch: Path) -> None:
    run(code, timeout_s=1)
    assert list(scratch.iterdir()) == []
    assert Path("/etc/passwd").exists()


def test_a_token_that_a_function_prints_does_not_reach_the_error() -> None:
    verdict = run("import os, sys; sys.exit(os.environ['QO_TASK_TOKEN'])")
    assert verdict.outcome is Outcome.FATAL
    assert TOKEN not in (verdict.error or "")


@pytest.mark.parametrize("entrypoint", ["other.py", "../main.py", "/etc/passwd", "", "-c"])
def test_only_a_file_of_the_bundle_is_an_entrypoint(entrypoint: str) -> None:
    body = bundle({MAIN: "print('{}')"})
    verdict = run_invocation(invocation_of(body, entrypoint=entrypoint), body, Conditions())
    assert (verdict.outcome, "entrypoint" in (verdict.error or "")) == (Outcome.FATAL, True)


def test_a_tampered_bundle_does_not_run(tmp_path: Path) -> None:
    body, other = bundle({MAIN: "print('{}')"}), bundle({MAIN: f"open({str(tmp_path / 'ran')!r}, 'w')"})
    verdict = run_invocation(invocation_of(body), other, Conditions())
    assert (verdict.outcome, "sha256" in (verdict.error or "")) == (Outcome.FATAL, True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("stop", "outcome"),
    [(Stop.CANCELLED, Outcome.CANCELLED), (Stop.RELEASED, Outcome.RELEASED), (Stop.LOST, Outcome.CANCELLED)],
)
def test_a_function_is_stopped_when_its_watcher_says_so(stop: Stop, outcome: Outcome) -> None:
    verdict = run("import time; time.sleep(600)", watch=lambda: stop)
    assert (verdict.outcome, verdict.stopped) == (outcome, stop)
