"""The route by which a worker completes attempts and claims its next tasks in one call.

Each of the calls has the rights, the checks and the answer that it has on its own route; only transactions and round
trips are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from qo.api.contract.body import Problem
from qo.api.contract.exchange import Completion, CompletionResult, ExchangeAnswer, ExchangeRequest
from qo.api.contract.task import Claimed, ClaimRequest, CompleteAnswer, NotClaimed
from qo.asgi.error_responses import INTERNAL, classify
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.attempts import complete_together
from qo.dispatcher.http.callers import CAPABILITY, Caller, identify
from qo.dispatcher.http.gathering import answer_all
from qo.dispatcher.http.rights import Need
from qo.dispatcher.http.routes import Call, CallerParam, ContextParam, Routes
from qo.dispatcher.http.workers import claim_next_together, claim_together
from qo.errors import Forbidden, QoError, Unauthenticated


def exchange_tasks(context: ContextParam, caller: CallerParam, body: ExchangeRequest) -> ExchangeAnswer:
    """Complete attempts, then claim tasks: by their ids, as by their own routes, or the next ones of a queue.

    A repeated request returns the same answers.
    """
    return ExchangeAnswer(
        completions=_complete_all(context, body.completions),
        claims=_claim_all(context, caller, body.claims),
        next=claim_next_together(context, caller, body.next),
    )


def _complete_all(context: Context, completions: Sequence[Completion]) -> list[CompletionResult]:
    results: dict[int, CompletionResult] = {}
    calls: dict[int, Call] = {}
    for at, each in enumerate(completions):
        try:
            caller = identify(context, Need.TASK, {CAPABILITY: each.capability_token})
            calls[at] = Call(caller, each.completion)
        except (Unauthenticated, Forbidden) as error:
            results[at] = _problem(error)
    answers = answer_all(lambda some: complete_together(context, some), list(calls.values()), _task_of)
    for at, answer in zip(calls, answers, strict=True):
        results[at] = _problem(answer) if isinstance(answer, Exception) else _result(answer)
    return [results[at] for at in range(len(completions))]


def _claim_all(context: Context, caller: Caller, claims: Sequence[ClaimRequest]) -> list[Claimed | NotClaimed]:
    calls = [Call(caller, each) for each in claims]
    answers: list[Claimed | NotClaimed] = []
    for answer in answer_all(lambda some: claim_together(context, some), calls, _task_of):
        if isinstance(answer, Exception):
            # All of them are repeated. One that the token is not for is then refused by itself.
            raise answer
        answers.append(answer)
    return answers


def _task_of(call: Call) -> str:
    return call.body.task_id


def _result(answer: CompleteAnswer) -> CompletionResult:
    return CompletionResult(status=HTTPStatus.OK, answer=answer)


def _problem(error: Exception) -> CompletionResult:
    """Return the problem of one completion. Raises an error that nobody expects, so that it is logged."""
    status, code = classify(error)
    if code == INTERNAL or not isinstance(error, QoError):
        raise error
    return CompletionResult(status=status, problem=Problem(error=str(error), code=code, detail=[]))


def install(routes: Routes) -> None:
    routes.post("/internal/task-exchange", exchange_tasks, frequent=True)
