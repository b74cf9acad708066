"""The entry of AWS Lambda: set ``qo.function.aws.handler`` as the handler of the function that runs bundles.

Lambda is the sandbox: one attempt at a time in a machine of its own, which is used again for others. A bundle runs as a
child process with a cleared environment. It could read the environment of its parent, where Lambda keeps the
credentials of the function's role, so the parent shuts that off; give the role no rights beyond logs all the same.

    QO_FUNCTION_ENV    names of variables of the Lambda function that bundles may request, separated by commas
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
from contextlib import suppress
from typing import Any

from qo.function.execution import MARGIN_S, Conditions
from qo.function.invocation_handler import handle

OFFERED = "QO_FUNCTION_ENV"
_PR_SET_DUMPABLE = 4


def handler(event: dict[str, Any], context: Any) -> dict[str, str]:
    """Run the function of one invocation, and report its end."""
    logging.getLogger("qo").setLevel(logging.INFO)
    _hide_environment()
    limit_s = max(1.0, context.get_remaining_time_in_millis() / 1000 - MARGIN_S)
    conditions = Conditions(offered=offered_variables(os.environ.get(OFFERED, "")), timeout_s=limit_s)
    return {"outcome": handle(json.dumps(event).encode(), conditions).outcome}


def offered_variables(names: str) -> dict[str, str]:
    """Return the variables of this process that are named, separated by commas."""
    return {name: os.environ[name] for each in names.split(",") if (name := each.strip()) in os.environ}


def _hide_environment() -> None:
    """Make /proc/self unreadable for processes of the same user."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
