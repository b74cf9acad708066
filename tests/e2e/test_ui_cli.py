"""``qo ui`` as its user runs it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from qo.dispatcher import aws
from qo.ui import assets
from qo.up.installation import Installation
from qo.up.targets import read
from support.cli.command import Qo
from support.ui.dashboards import page, read_fragment

PIPELINE = """\
name: letters
jobs:
  - name: inbox
    activation: source
    source: {kind: manual}
    outputs: 1
"""


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    return Qo(tmp_path)


@contextmanager
def serving(qo: Qo, *args: str) -> Iterator[dict[str, Any]]:
    """What a dashboard said when it began; it ends with the block, and well."""
    process = qo.start("ui", "--json", "--port", "0", *args)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[-1] == "}\n", lines + process.communicate()[1].splitlines()
        yield json.loads("".join(lines))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def client(said: dict[str, Any]) -> Any:
    held = read_fragment(said["link"].partition("#c=")[2])
    return boto3.client(
        "s3",
        endpoint_url=f"{said['url']}/s3",
        region_name="us-east-1",
        aws_access_key_id=held["access_key_id"],
        aws_secret_access_key=held["secret_access_key"],
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def fetched(url: str, **headers: str) -> Any:
    asked = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return json.loads(answer.read())


def test_the_dashboard_shows_the_queue_of_this_directory(qo: Qo) -> None:
    task = qo.json("submit", "-t", "greet", "-i", '{"name": "ada"}')["id"]
    with serving(qo) as said:
        assert fetched(f"{said['url']}/config.json")["bucket"] == "qo"
        s3 = client(said)
        (listed,) = s3.list_objects_v2(Bucket="qo", Prefix="tasks/")["Contents"]
        assert task in listed["Key"]
        got = s3.get_object(Bucket="qo", Key=listed["Key"])
        stored = json.loads(got["Body"].read())
        assert stored["input"] == {"name": "ada"}
        s3.put_object(Bucket="qo", Key=listed["Key"], Body=json.dumps(stored).encode(), IfMatch=got["ETag"])
        s3.close()


def test_read_only_changes_nothing(qo: Qo) -> None:
    qo.ok("submit", "-t", "greet")
    with serving(qo, "--read-only") as said:
        assert read_fragment(said["link"].partition("#c=")[2])["may_act"] is False
        s3 = client(said)
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.put_object(Bucket="qo", Key="tasks/0/x.json", Body=b"{}")
        s3.close()


def test_a_port_that_is_taken_is_an_error(qo: Qo) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = qo("ui", "--port", str(taken.getsockname()[1]))
    assert answer.code == 2
    assert "something else listens there" in answer.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("ui", "deploy"), "is not a bucket"),
        (("ui", "credentials"), "is not a bucket"),
        (("ui", "--store", "memory:"), "lives inside one process"),
        (("ui", "deploy", "--origin", "*"), "--origin takes origins"),
        (("ui", "deploy", "--dispatcher", "example.com"), "--dispatcher takes a URL"),
        (("ui", "credentials", "--hours", "13"), "hours"),
        (("ui", "--port", "70000"), "port"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(qo: Qo, args: tuple[str, ...], said: str) -> None:
    answer = qo.here(*args)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_help_tells_of_all_three(qo: Qo) -> None:
    shown = qo.ok("ui", "--help")
    for name in ("serve", "deploy", "credentials"):
        assert name in shown
    assert "--read-only" in qo.ok("ui", "serve", "--help")


def test_the_dashboard_of_the_embedded_store_needs_no_extra() -> None:
    extras = ("aiohttp", "botocore", "fastapi", "httpx", "pydantic", "sqlalchemy", "uvicorn", "yaml")
    hide = f"import sys; sys.modules.update(dict.fromkeys({extras})); import qo.cli.run.ui, qo.ui.serving"
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.s3
def test_a_page_in_a_bucket_is_let_in_with_what_the_command_prints(
    tmp_path: Path, moto_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.client.cache_clear()
    monkeypatch.setattr(assets, "STATIC", page(tmp_path / "static"))
    bucket = moto_server.make_bucket()
    qo = Qo(tmp_path, {**moto_server.environment(bucket), "QO_UI_ROLE_ARN": "arn:aws:iam::123456789012:role/ui"})
    deployed = qo.json("ui", "deploy", "--public")
    assert deployed["link"] == f"{moto_server.endpoint}/{bucket}/ui/index.html"
    answer = qo.here("ui", "credentials", "--read-only", "--hours", "0.5")
    assert answer.code == 0
    held = read_fragment(answer.out.strip())
    assert held["session_token"]
    assert moto_server.secret_key not in answer.out + answer.err
    linked = qo.ok("ui", "credentials", "--link")
    assert linked.startswith(f"{deployed['link']}#c=")
    aws.client.cache_clear()


async def test_qo_up_brings_a_dashboard_that_knows_its_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    pipeline, _ = read(str(tmp_path))
    async with Installation({}, None, [pipeline], tmp_path / "logs") as site:
        await site.start()
        await site.deploy(pipeline)
        link = await site.dashboard_link()
        url, _, fragment = link.partition("/#c=")
        held = read_fragment(fragment)
        config = await asyncio.to_thread(fetched, f"{url}/config.json")
        assert config["dispatcher"] == url
        bearer = f"Bearer {held['dispatcher_token']}"
        dags = await asyncio.to_thread(fetched, f"{url}/v1/dags", Authorization=bearer)
        assert [each["name"] for each in dags["dags"]] == ["letters"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(fetched, f"{url}/v1/tokens", Authorization=bearer)
        assert refused.value.code == 403
        refused.value.close()
    with serving(Qo(tmp_path)) as said:  # Nobody dispatches any more, and all that was can still be seen.
        bearer = f"Bearer {read_fragment(said['link'].partition('#c=')[2])['dispatcher_token']}"
        dags = await asyncio.to_thread(fetched, f"{said['url']}/v1/dags", Authorization=bearer)
        assert [each["name"] for each in dags["dags"]] == ["letters"]
    # Nobody listens there any more, or somebody else who does not know the token.
    with pytest.raises(OSError):  # noqa: PT011 - whatever it is called.
        await asyncio.to_thread(fetched, f"{url}/v1/dags", Authorization=f"Bearer {held['dispatcher_token']}")
