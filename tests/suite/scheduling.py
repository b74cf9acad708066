"""Files of tests for the processes that run them; what a process that died had left goes to the others."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

WAITS_WITH = 1  # A process runs a test when it knows the next, or that there is none.


class FileScheduling(LoadFileScheduling):
    """As ``--dist loadfile``, which hands out again what is done already, or a single test, and then waits for ever."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that the process died of. It has failed, and is not run again."""
        left = {
            file: {test: done for test, done in tests.items() if not done}
            for file, tests in self.assigned_work.pop(node).items()
            if not all(tests.values())
        }
        if not left:
            return None
        first = next(iter(left))
        died_of = next(iter(left[first]))
        del left[first][died_of]
        self.workqueue.update({file: tests for file, tests in left.items() if tests})
        for other in self.assigned_work:
            self._reschedule(other)
        return died_of

    def _assign_work_unit(self, node: WorkerController) -> None:
        with suppress(OSError):  # It has died, which is heard of later: then this is handed out again.
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        while (
            self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) <= WAITS_WITH
        ):
            self._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None
