"""The route for who deletes files: which of them may go?"""

from __future__ import annotations

from qo.api.contract.garbage import JudgeAnswer, JudgeRequest
from qo.dispatcher.engine import garbage
from qo.dispatcher.http.routes import ContextParam, Routes


def judge_prefixes(context: ContextParam, body: JudgeRequest) -> JudgeAnswer:
    """Say which prefixes of attempts and which manifests, found below the data root, nobody needs any more.

    What may go, may go for ever: it is marked, and versions of which it is a part can be read no more. With retired,
    the generations that are given up are marked, too: no version can have them again.
    """
    with context.state.read() if body.dry_run else context.state.write() as tx:
        return JudgeAnswer(judged=garbage.judge(tx, body))


def install(routes: Routes) -> None:
    routes.post("/v1/collection", judge_prefixes)
