"""The route for who deletes files: which of them may go?"""

from __future__ import annotations

from qo.dispatcher import garbage
from qo.dispatcher.contract.garbage import JudgeAnswer, JudgeRequest
from qo.dispatcher.http.routes import Here, Routes


def judge_prefixes(here: Here, body: JudgeRequest) -> JudgeAnswer:
    """Say which prefixes of attempts, found below the data root, nobody needs any more.

    What may go, may go for ever. With retired, the generations that are given up are marked: no version can have them
    again.
    """
    opened = here.state.write() if body.retired and not body.dry_run else here.state.read()
    with opened as tx:
        return JudgeAnswer(judged=garbage.judge(tx, body))


def install(routes: Routes) -> None:
    routes.post("/v1/collection", judge_prefixes)
