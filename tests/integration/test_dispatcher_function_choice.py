"""Where functions run is the operator's choice: nowhere, unless a service, a sandbox or an engine is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qo.api.contract.task import Outcome
from qo.config import origins
from qo.config.dispatcher import DispatcherSettings, LocalBundles
from qo.config.settings import Settings
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.runtimes.aws_lambda import AwsFunctions
from qo.dispatcher.runtimes.choice import choose_functions
from qo.dispatcher.runtimes.local_functions import Functions, LocalFunctions, NoFunctions
from qo.dispatcher.state.database import State
from qo.errors import ConfigError
from qo.function import sandbox
from qo.pipeline.registry import configured_registry
from support.dispatcher.function_sites import Site
from support.dispatcher.invocations import invocation_of
from support.dispatcher.states import clock, state  # noqa: F401


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing.open(tmp_path / "keys")


def chosen(settings: Settings, state: State, ring: KeyRing, runtime: str = "lambda") -> Functions:  # noqa: F811
    return choose_functions(settings, configured_registry(settings.runtimes).get(runtime), state, ring)


def of_dispatcher(**values: Any) -> Settings:
    return Settings(dispatcher=DispatcherSettings(**values))


def test_without_a_choice_no_bundle_runs_and_the_task_says_what_to_set(
    state: State,  # noqa: F811
    tmp_path: Path,
    ring: KeyRing,
) -> None:
    ran = tmp_path / "ran"
    here = Site(state, tmp_path, f"open({str(ran)!r}, 'w'); print('{{}}')", outputs=0)
    task_id = here.wake()
    invoker = here.invoker(chosen(of_dispatcher(data=here.data_root), state, ring))
    try:
        assert invoker.tick() == 1
        row = here.settled(task_id, "completed", "failed")
    finally:
        invoker.close()
    assert row["status"] == "failed"
    assert "QO_LAMBDA_FUNCTION" in row["last_error"]
    assert "QO_LAMBDA_LOCAL" in row["last_error"]
    assert not ran.exists()


def test_who_names_a_function_or_opts_in_gets_just_that(state: State, ring: KeyRing) -> None:  # noqa: F811
    named = of_dispatcher(lambda_function="bundles", lambda_local=LocalBundles.UNSAFE)
    assert isinstance(chosen(named, state, ring), AwsFunctions)
    unsafe = chosen(of_dispatcher(lambda_local=LocalBundles.UNSAFE), state, ring)
    assert isinstance(unsafe, LocalFunctions)
    assert not unsafe.sandbox.confines
    for runtime in ("lambda", "container"):
        assert isinstance(chosen(Settings(), state, ring, runtime), NoFunctions)


def test_without_a_sandbox_bundles_are_refused_and_never_run_without_one(
    state: State,  # noqa: F811
    ring: KeyRing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "_examine", lambda: (None, ("namespaces: not permitted",)))
    functions = chosen(of_dispatcher(lambda_local=LocalBundles.SANDBOX), state, ring)
    verdict = functions.launch(invocation_of(b""), lambda: None)
    assert verdict is not None
    assert verdict.outcome is Outcome.FATAL
    for part in ("namespaces: not permitted", "bubblewrap", "QO_LAMBDA_LOCAL=unsafe"):
        assert part in (verdict.error or "")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "means"), [("sandbox", "sandbox"), ("unsafe", "unsafe"), ("false", "off"), ("off", "off")]
)
def test_bundles_on_the_dispatchers_machine_are_off_sandboxed_or_unsafe(text: str, means: str) -> None:
    loaded = origins.load(environ={"QO_LAMBDA_LOCAL": text}, cwd=Path("/nonexistent"))
    assert loaded.dispatcher.lambda_local == means


@pytest.mark.fast
def test_the_earlier_opt_in_is_refused_because_it_meant_no_sandbox() -> None:
    with pytest.raises(ConfigError, match="unsafe"):
        origins.load(environ={"QO_LAMBDA_LOCAL": "true"}, cwd=Path("/nonexistent"))
