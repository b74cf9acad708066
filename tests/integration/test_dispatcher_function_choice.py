"""Where bundles run is the operator's choice: nowhere, unless a function or the dispatcher's own user is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher.runtimes.aws_lambda import AwsFunctions
from qo.dispatcher.runtimes.invoker import LocalFunctions
from qo.dispatcher.service import functions_of
from qo.dispatcher.state.database import State
from support.dispatcher.function_sites import Site
from support.dispatcher.states import clock, state  # noqa: F401


def test_without_a_choice_no_bundle_runs_and_the_task_says_what_to_set(
    state: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    ran = tmp_path / "ran"
    here = Site(state, tmp_path, f"open({str(ran)!r}, 'w'); print('{{}}')", outputs=0)
    chosen = Settings(dispatcher=DispatcherSettings(data=here.data_root))
    task_id = here.wake()
    invoker = here.invoker(functions_of(chosen))
    try:
        assert invoker.tick() == 1
        row = here.settled(task_id, "completed", "failed")
    finally:
        invoker.close()
    assert row["status"] == "failed"
    assert "QO_LAMBDA_FUNCTION" in row["last_error"]
    assert "QO_LAMBDA_LOCAL" in row["last_error"]
    assert not ran.exists()


@pytest.mark.fast
def test_who_names_a_function_or_opts_in_gets_just_that() -> None:
    named = Settings(dispatcher=DispatcherSettings(lambda_function="bundles", lambda_local=True))
    assert isinstance(functions_of(named), AwsFunctions)
    assert isinstance(functions_of(Settings(dispatcher=DispatcherSettings(lambda_local=True))), LocalFunctions)
    assert not isinstance(functions_of(Settings()), LocalFunctions)
