"""Bundles as they are built, rehearsed and pushed, and the package for AWS Lambda."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from qo.errors import UsageError
from qo.function.archive import inspect
from qo.function.packing import HANDLER, build, build_lambda
from qo.function.rehearsal import rehearse
from qo.function.sandbox import PlainProcess
from support.servers.s3 import REGION, S3Server

SUM = """
import json, sys
work = json.load(sys.stdin)["work"]
print(json.dumps({"result": sum(work["config"]["numbers"])}))
"""


@pytest.fixture
def score(tmp_path: Path) -> Path:
    directory = tmp_path / "score"
    (directory / "lib" / "__pycache__").mkdir(parents=True)
    (directory / "main.py").write_text(SUM)
    (directory / "lib" / "words.py").write_text("WORD = 1")
    (directory / "lib" / "__pycache__" / "words.pyc").write_bytes(b"not packed")
    (directory / "bundle.toml").write_text('name = "score"\nenv = ["API_BASE"]\n')
    return directory


@pytest.mark.fast
def test_the_same_files_give_the_same_bundle_byte_for_byte(score: Path) -> None:
    first = build(score)
    os.utime(score / "main.py", (0, 0))
    (score / "main.py").chmod(0o777)
    assert build(score).body == first.body
    assert hashlib.sha256(first.body).hexdigest() == first.sha256
    manifest = inspect(first.body, first.sha256)
    assert (manifest.name, manifest.entrypoint, manifest.env_allowlist) == ("score", "main.py", ("API_BASE",))
    assert [each.path for each in manifest.files] == ["lib/words.py", "main.py"]
    assert manifest.python is not None


@pytest.mark.fast
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "main.py").unlink(), "--entrypoint"),
        (lambda d: (d / "link").symlink_to("/etc/passwd"), "no plain file"),
        (lambda d: (d / "bundle.toml").write_text("entry = 'x'"), "it takes entrypoint, env, name"),
        (lambda d: (d / "bundle.toml").write_text("env = 'x'"), "Expected `array`"),
        (lambda d: (d / "bundle.toml").write_text("env = ['AWS_SECRET_ACCESS_KEY']"), "cannot have the variable"),
        (lambda d: (d / "bundle.toml").write_text("entrypoint = 'other.py'"), "other.py"),
        (lambda d: (d / "bundle.toml").write_text("="), "not TOML"),
    ],
)
def test_what_no_bundle_may_hold_is_refused_in_words(score: Path, spoil: Any, message: str) -> None:
    spoil(score)
    with pytest.raises(UsageError, match=message):
        build(score)


def test_a_rehearsal_writes_its_output_where_it_is_told(score: Path, tmp_path: Path) -> None:
    (score / "main.py").write_text(
        "import json, sys\nprefix = json.load(sys.stdin)['work']['outputs'][0]['prefix']\n"
        "open(prefix.removeprefix('file:') + 'part', 'w').write('rows')\nprint('{}')"
    )
    (tmp_path / "out").mkdir()
    verdict = rehearse(build(score).body, {}, sandbox=PlainProcess(), output=tmp_path / "out")
    assert verdict.error is None
    assert (tmp_path / "out" / "part").read_text() == "rows"


def test_compiled_modules_of_another_python_are_refused_before_they_fail(score: Path) -> None:
    packed = build(score)
    with zipfile.ZipFile(io.BytesIO(packed.body)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("bundle_manifest.json"))
    files["fast.so"] = b"compiled"
    entry = {"path": "fast.so", "sha256": hashlib.sha256(b"compiled").hexdigest(), "bytes": 8}
    manifest |= {"python": "2.7", "files": [*manifest["files"], entry]}
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, body in {**files, "bundle_manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, body)
    verdict = rehearse(written.getvalue(), {}, sandbox=PlainProcess())
    assert "built with Python 2.7" in (verdict.error or "")


@pytest.mark.s3
def test_lambda_takes_the_package_as_a_function(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto_server.secret_key)
    package = build_lambda()
    httpx.post(
        f"{moto_server.endpoint}/moto-api/config", json={"lambda": {"use_docker": False}}
    ).raise_for_status()
    known: dict[str, Any] = {"endpoint_url": moto_server.endpoint, "region_name": REGION}
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    role = boto3.client("iam", **known).create_role(RoleName="qo-package", AssumeRolePolicyDocument=trust)
    client = boto3.client("lambda", **known)
    made = client.create_function(
        FunctionName="qo-package",
        Role=role["Role"]["Arn"],
        Runtime=package.runtime,
        Architectures=[package.architecture],
        Handler=package.handler,
        Code={"ZipFile": package.body},
    )
    assert (made["Handler"], made["CodeSize"]) == (HANDLER, len(package.body))
    answer = client.invoke(FunctionName="qo-package", InvocationType="Event", Payload=b"{}")
    assert answer["StatusCode"] == 202


@pytest.mark.fast
def test_every_file_of_the_package_is_readable_by_lambdas_user() -> None:
    with zipfile.ZipFile(io.BytesIO(build_lambda().body)) as archive:
        assert {entry.external_attr >> 16 for entry in archive.infolist()} == {0o644}
        names = archive.namelist()
    assert "qo/function/aws.py" in names
    assert {name.partition("/")[0] for name in names} == {"qo", "msgspec"}
    assert not [name for name in names if name.startswith(("qo/cli", "qo/dispatcher", "qo/api"))]
