"""The route of the garbage collection: it asks which files may be deleted."""

from __future__ import annotations

from qo.api.contract.garbage import JudgeAnswer, JudgeRequest
from qo.dispatcher.engine import garbage
from qo.dispatcher.http.routes import ContextParam, Routes


def judge_prefixes(context: ContextParam, body: JudgeRequest) -> JudgeAnswer:
    """Decide which prefixes of attempts and which manifests below the data root are no longer needed.

    A decision to delete is final: the prefix is marked, and versions that contain it can no longer be read. With
    retired, the generations that are given up are marked, too: no version can use them again.
    """
    with context.state.read() if body.dry_run else context.state.write() as tx:
        return JudgeAnswer(judged=garbage.judge(tx, body))


def install(routes: Routes) -> None:
    routes.post("/v1/collection", judge_prefixes)
