"""Requests with a missing header, a webhook without a usable secret, and the list of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from qo.dispatcher.state.database import State
from support.cli.command import Qo
from support.dispatcher.listeners import served
from support.dispatcher.pipelines import dag, deployed, source
from support.dispatcher.shop_tasks import SHOP


async def test_a_body_without_its_content_type_is_told_which_header_is_missing(
    state: State, tmp_path: Path
) -> None:
    deployed(state, SHOP)
    body = b'{"idempotency_key": "k", "events": [{"output": 0, "partition_key": "a"}]}'
    async with served(state, tmp_path) as dispatcher:
        for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
            answer = await dispatcher.post(
                "/v1/sources/shop/orders/events", "writer", content=body, headers=headers
            )
            assert answer.status_code == 422
            assert "Content-Type: application/json" in answer.text


async def test_a_webhook_whose_secret_is_unusable_is_our_fault(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployed(state, dag("d", source("in", "webhook", of={"webhook_path": "in", "secret": "shop"})))
    async with served(state, tmp_path) as dispatcher:
        secret = tmp_path / "secrets/webhook-shop"
        secret.write_text("0123456789abcdef\n")
        secret.chmod(0o644)
        answer = await dispatcher.post("/v1/webhooks/in", content=b"{}", headers={"X-Qo-Signature": "t=1,v1=00"})
        assert answer.status_code == 503
        assert "secret" in answer.text
        assert str(tmp_path) not in answer.text
        assert "chmod 600" in caplog.text


def test_the_list_of_keys_says_which_one_signs(tmp_path: Path) -> None:
    qo = Qo(tmp_path)
    qo.ok("key", "rotate")
    first, second = qo.json("key", "list")
    assert (first["now"], second["now"]) == ("signs", "signs later")
    assert second["signs_from"] is not None
    assert "signs later" in qo.ok("key", "list")
