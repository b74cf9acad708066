"""Settings: where they come from, what they refuse, and that the documentation says the same."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qo.config import kinds
from qo.config.dispatcher import LocalBundles
from qo.config.location import S3, Local, Memory, parse
from qo.config.origins import load
from qo.config.runtimes import RuntimeSettings
from qo.config.setting import Setting
from qo.config.settings import SETTINGS, Settings
from qo.config.spark import BucketAccess
from qo.core.discovery import IndexMode
from qo.core.retention import Keep, Policy
from qo.errors import ConfigError

pytestmark = pytest.mark.fast

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"

# A value other than the default for each kind of setting, as text and as TOML.
OTHER: dict[str, tuple[str, str, Any]] = {
    "store": ("s3://bucket/team", '"s3://bucket/team"', "s3://bucket/team"),
    "log_level": ("warn", '"warn"', "warning"),
    "include": ("rules/*.json,a.sql", '["rules/*.json", "a.sql"]', ("rules/*.json", "a.sql")),
    "isolation": ("process", '"process"', "process"),
    "queue.dispatch": ("direct", '"direct"', "direct"),
    "queue.routing": ("hash", '"hash"', "hash"),
    "worker.packages": ("refuse", '"refuse"', "refuse"),
    "worker.credentials": ("required", '"required"', "required"),
    "s3.endpoint": ("http://127.0.0.1:9000/", '"http://127.0.0.1:9000"', "http://127.0.0.1:9000"),
    "s3.region": ("eu-central-1", '"eu-central-1"', "eu-central-1"),
    "worker.poll_max_ms": ("3000", "3000", 3000),
    "worker.id": ("w-1", '"w-1"', "w-1"),
    "scaler.id": ("s-1", '"s-1"', "s-1"),
    "scaler.directory": ("places", '"places"', "places"),
    "worker.shards": ("a, 0", '["a", "0"]', ("a", "0")),
    "worker.shard_leasing.lease_ttl_s": ("40", "40", 40),
    "worker.queue": ("high=3, low", '["high=3", "low=1"]', ("high=3", "low=1")),
    "secrets.place": ("database", '"database"', "database"),
    "secrets.keys_from": ("my_keys:load", '"my_keys:load"', "my_keys:load"),
    "encryption.keys_from": ("my_keys:load", '"my_keys:load"', "my_keys:load"),
    "worker.rate_limit": ("10/60", '"10/60"', "10/60"),
    "worker.unknown_types": ("fail", '"fail"', "fail"),
    "worker.http": ("127.0.0.1:9100", '"127.0.0.1:9100"', "127.0.0.1:9100"),
    "dispatcher.state": ("postgres://qo@db/qo", '"postgresql://qo@db/qo"', "postgresql://qo@db/qo"),
    "dispatcher.listen": ("0.0.0.0:80", '"0.0.0.0:80"', "0.0.0.0:80"),
    "dispatcher.internal_listen": ("0.0.0.0:81", '"0.0.0.0:81"', "0.0.0.0:81"),
    "dispatcher.url": ("https://qo.example/", '"https://qo.example"', "https://qo.example"),
    "dispatcher.internal_url": ("http://10.0.0.1:8471", '"http://10.0.0.1:8471"', "http://10.0.0.1:8471"),
    "dispatcher.sts_endpoint": ("http://127.0.0.1:9000", '"http://127.0.0.1:9000"', "http://127.0.0.1:9000"),
    "dispatcher.lambda_endpoint": ("http://127.0.0.1:9001", '"http://127.0.0.1:9001"', "http://127.0.0.1:9001"),
    "dispatcher.data": ("s3://lake/data/", '"s3://lake/data"', "s3://lake/data"),
    "dispatcher.cors_origins": (
        "https://B.example, http://localhost:1",
        '["https://b.example", "http://localhost:1"]',
        ("https://b.example", "http://localhost:1"),
    ),
    "dispatcher.body_max_bytes": ("4096", "4096", 4096),
    "dispatcher.pressure.clear_ratio": ("0.25", "0.25", 0.25),
    "dispatcher.lineage_url": (
        "http://127.0.0.1:5000/v1",
        '"http://127.0.0.1:5000/v1"',
        "http://127.0.0.1:5000/v1",
    ),
    "worker.push_address": ("10.0.0.1:8090", '"10.0.0.1:8090"', "10.0.0.1:8090"),
    "push.token": ("a secret of the tests", '"a secret of the tests"', "a secret of the tests"),
    "fetch.networks": ("10.0.0.0/8, ::1/128", '["10.0.0.0/8", "::1/128"]', ("10.0.0.0/8", "::1/128")),
    "push.networks": ("10.0.0.0/8, ::1/128", '["10.0.0.0/8", "::1/128"]', ("10.0.0.0/8", "::1/128")),
    "serve.listen": ("0.0.0.0:82", '"0.0.0.0:82"', "0.0.0.0:82"),
    "serve.body_max_bytes": ("4096", "4096", 4096),
    "spark.conf": (
        "spark.a=1, spark.b=x y",
        '{"spark.a" = "1", "spark.b" = "x y"}',
        (("spark.a", "1"), ("spark.b", "x y")),
    ),
    "spark.packages": ("a:b:1, c:d:2", '["a:b:1", "c:d:2"]', ("a:b:1", "c:d:2")),
    "spark.bucket_access": ("python", '"python"', BucketAccess.PYTHON),
    "monitor.http": ("127.0.0.1:9101", '"127.0.0.1:9101"', "127.0.0.1:9101"),
    **{f"retention.keep_{status}": ("2d", '"2d"', 172_800.0) for status in Keep.__slots__},
    "retention.types": (
        "send.mail.keep_failed=90d, load.keep_completed=forever",
        '{"send.mail" = {keep_failed = "90d"}, load = {keep_completed = "forever"}}',
        (("send.mail", (("keep_failed", 7_776_000.0),)), ("load", (("keep_completed", None),))),
    ),
    "dispatcher.pressure.queues": ("spark=9/60", '{spark = "9/60"}', (("spark", "9/60"),)),
    "sink.databases": (
        "data=postgresql://qo@db/data",
        '{data = "postgresql://qo@db/data"}',
        (("data", "postgresql://qo@db/data"),),
    ),
    "sink.directories": (
        "files=s3://bucket/out",
        '{files = "s3://bucket/out"}',
        (("files", "s3://bucket/out"),),
    ),
    "sink.poll_ms": ("50", "50", 50),
    "telemetry.otlp_endpoint": ("http://127.0.0.1:4318", '"http://127.0.0.1:4318"', "http://127.0.0.1:4318"),
    "telemetry.otlp_metrics_endpoint": ("http://127.0.0.1:1/m", '"http://127.0.0.1:1/m"', "http://127.0.0.1:1/m"),
    "telemetry.otlp_headers": ("a=b", '{a = "b"}', (("a", "b"),)),
    "worker.limits": ("a=1, b=5/m", '{"a" = "1", "b" = "5/m"}', (("a", "1"), ("b", "5/m"))),
    "worker.idle_timeout": ("5m", '"5m"', "5m"),
    "runtimes": (
        '{"spark": {"queues": ["spark", "slow=2"]}}',
        '{spark = {queues = ["spark", "slow=2"]}}',
        (RuntimeSettings(name="spark", queues=("spark=1", "slow=2")),),
    ),
    "dispatcher.lambda_local": ("sandbox", '"sandbox"', LocalBundles.SANDBOX),
    "worker.index_mode": ("index-only", '"index-only"', IndexMode.INDEX_ONLY),
}


def other(setting: Setting) -> tuple[str, str, Any]:
    if setting.key in OTHER:
        return OTHER[setting.key]
    if setting.default is True:
        return "no", "false", False
    if setting.default is False:
        return "yes", "true", True
    if setting.kind is kinds.TEXT:
        return "chosen", '"chosen"', "chosen"
    return "3", "3", 3


def write(directory: Path, name: str, key: str, value: str, root: str = "") -> None:
    group, _, last = key.rpartition(".")
    table = ".".join(part for part in (root, group) if part)
    header = f"[{table}]\n" if table else ""
    (directory / name).write_text(f"{header}{last} = {value}\n")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_can_be_set_in_every_place_and_says_where_it_came_from(
    setting: Setting, tmp_path: Path
) -> None:
    text, toml, value = other(setting)
    assert value != setting.default

    def loaded(flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> tuple[Any, str]:
        settings = load(flags, environ=environ or {}, cwd=tmp_path)
        return settings.value(setting.key), settings.origin(setting.key)

    assert loaded() == (setting.default, "default")
    write(tmp_path, "pyproject.toml", setting.key, toml, root="tool.qo")
    assert loaded() == (value, "[tool.qo] in pyproject.toml")
    write(tmp_path, "qo.toml", setting.key, toml)
    assert loaded() == (value, "qo.toml")
    for variable in setting.env:
        assert loaded(environ={variable: text}) == (value, f"environment {variable}")
    assert loaded({setting.key: text}, {setting.env[0]: text}) == (value, f"flag {setting.flag}")


def test_a_type_is_kept_as_its_own_table_says_and_else_as_all_others(tmp_path: Path) -> None:
    (tmp_path / "qo.toml").write_text(
        '[retention]\nkeep_completed = "30d"\nkeep_failed = "90d"\n[retention.audit]\nkeep_completed = "forever"\n'
    )
    default = Keep(completed=timedelta(days=30), failed=timedelta(days=90))
    policy = load(environ={}, cwd=tmp_path).retention.policy
    assert policy == Policy(default, {"audit": Keep(failed=timedelta(days=90))})
    assert Settings().retention.policy.limits == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[retention]\nkeep_completed = "10m"', "at least 1h"),
        ('[retention]\nkeep_completed = "soon"', "12h or 30d, or forever"),
        ("[retention]\nkeep_failed = true", "12h or 30d, or forever"),
        ('[retention.audit]\nkeep_done = "30d"', "keep_completed, keep_failed"),
        ('[retention.audit]\nkeep_failed = "5s"', "audit.keep_failed must be"),
        ("[retention]\nkeep_falied = 1", "did you mean 'retention.keep_failed'"),
    ],
)
def test_a_mistake_in_retention_is_explained(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "qo.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(environ={}, cwd=tmp_path)


def test_the_stronger_source_wins(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.qo.worker]\nconcurrency = 1\n")
    assert load(environ={}, cwd=tmp_path).worker.concurrency == 1
    (tmp_path / "qo.toml").write_text("[worker]\nconcurrency = 2\n")
    assert load(environ={}, cwd=tmp_path).worker.concurrency == 2
    assert load(environ={"QO_CONCURRENCY": "3"}, cwd=tmp_path).worker.concurrency == 3
    assert load({"worker.concurrency": 4}, environ={"QO_CONCURRENCY": "3"}, cwd=tmp_path).worker.concurrency == 4


def test_a_flag_equal_to_its_default_still_overrules_the_file(tmp_path: Path) -> None:
    (tmp_path / "qo.toml").write_text("[worker]\nconcurrency = 2\n")
    settings = load({"worker.concurrency": 16}, environ={}, cwd=tmp_path)
    assert (settings.worker.concurrency, settings.origin("worker.concurrency")) == (16, "flag --concurrency")


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    assert load(environ={"QO_STORE": "", "QO_SHARDS": ""}, cwd=tmp_path) == Settings()


@pytest.mark.parametrize(
    ("environ", "store"),
    [
        ({}, "local:.qo"),
        ({"S3_BUCKET": "queue"}, "s3://queue"),
        ({"QO_STORE": "local:here", "S3_BUCKET": "queue"}, "local:here"),
    ],
)
def test_the_store_is_the_named_one_else_the_bucket_else_local(
    environ: dict[str, str], store: str, tmp_path: Path
) -> None:
    assert load(environ=environ, cwd=tmp_path).store == store


def test_the_bucket_variable_overrules_a_file_as_any_variable_does(tmp_path: Path) -> None:
    (tmp_path / "qo.toml").write_text('store = "local:here"\n')
    settings = load(environ={"S3_BUCKET": "queue"}, cwd=tmp_path)
    assert (settings.store, settings.origin("store")) == ("s3://queue", "environment S3_BUCKET")


def test_another_settings_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "qo.toml").write_text("[worker]\nconcurrency = 2\n")
    (tmp_path / "other.toml").write_text("[worker]\nconcurrency = 5\n")
    assert load(environ={"QO_CONFIG": "other.toml"}, cwd=tmp_path).worker.concurrency == 5
    named = load(environ={}, cwd=tmp_path, config_path=tmp_path / "other.toml")
    assert named.worker.concurrency == 5
    assert named.origin("worker.concurrency") == str(tmp_path / "other.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[worker]\nconcurency = 2", r"'worker\.concurency' in qo\.toml.*did you mean 'worker\.concurrency'"),
        ("concurrency = 2", r"'concurrency' in qo\.toml.*did you mean 'worker\.concurrency'"),
        ("[wroker]\nconcurrency = 2", r"unknown setting 'wroker' in qo\.toml.*did you mean 'worker"),
        ("[worker]\nconcurrency = 0", r"worker\.concurrency must be a whole number.*qo\.toml says 0"),
        ('[worker]\nconcurrency = "16"', r"worker\.concurrency must be a whole number.*says '16'"),
        ("[worker]\nconcurrency = true", r"worker\.concurrency must be a whole number.*says True"),
        ("[worker]\nconcurrency = 1.5", r"worker\.concurrency must be a whole number"),
        ('[worker]\nindex_mode = "fast"', r"one of index-only, hybrid, log-scan.*says 'fast'"),
        ('[worker]\nshards = ["g"]', r"worker\.shards"),
        ("[worker]\nheartbeat_s = inf", r"worker\.heartbeat_s must be a number"),
        ("[worker]\nheartbeat_s = nan", r"worker\.heartbeat_s must be a number"),
        ("[worker]\npoll_min_ms = 200\npoll_max_ms = 100", r"poll_min_ms \(200, qo\.toml\) is more than"),
        ("[monitor]\nsweep_page_size = 1001", r"from 1 to 1000"),
        ("shard_prefix_len = 5", r"shard_prefix_len must be a whole number from 1 to 4"),
        ('allow_no_versioning = "yes"', r"allow_no_versioning must be true or false"),
        ('store = "redis://x"', r"local:PATH, s3://BUCKET\[/PREFIX\] or memory:"),
        ('store = "local:"', r"needs a path"),
        ("worker = 3", r"'worker' in qo\.toml must be a table"),
        ("[worker]\nshard_leasing = true", r"'worker\.shard_leasing' in qo\.toml must be a table"),
        ("[worker.shard_leasing]\nenable = true", r"did you mean 'worker\.shard_leasing\.enabled'"),
        ("[worker.shard_leasing]\nlease_renew_interval_s = 20", r"\(20, qo\.toml\) is more than half"),
        ('[worker]\nshards = ["a"]\n[worker.shard_leasing]\nenabled = true', r"exclude each other"),
        (
            '[queue]\ndispatch = "direct"\n[worker.shard_leasing]\nenabled = true',
            r"queue\.dispatch = direct \(qo\.toml\) and worker\.shard_leasing\.enabled \(qo\.toml\) exclude each other",
        ),
        ('[queue]\ndispatch = "both"', r"queue\.dispatch must be one of shared, direct"),
        ('[s3]\nendpoint = "http://user:secret@host"', r"credentials do not belong"),
        ('[s3]\nendpoint = "host:9000"', r"s3\.endpoint must be a URL"),
        ('[dispatcher]\ncors_origins = ["*"]', r"cors_origins must be origins such as"),
        ('[dispatcher]\ncors_origins = ["https://a.example/"]', r"cors_origins must be origins such as"),
        ("[worker", r"not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_fault(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "qo.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(environ={}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"QO_CONCURENCY": "2"}, "unknown environment variable QO_CONCURENCY.*'QO_CONCURRENCY'"),
        ({"QO_MONITOR_CHECK_INTERVALL": "2"}, "'QO_MONITOR_CHECK_INTERVAL_S'"),
        ({"QO_CONCURRENCY": "many"}, "environment QO_CONCURRENCY says 'many'"),
        ({"QO_CONCURRENCY": "1_000"}, "environment QO_CONCURRENCY says '1_000'"),
        ({"QO_NO_MONITOR": "maybe"}, "worker.no_monitor must be true or false"),
        ({"QO_STORE": "s3://"}, "not a bucket name"),
        ({"S3_BUCKET": "no/../way"}, "cannot be part of a prefix"),
        ({"QO_CONFIG": "missing.toml"}, r"there is no settings file .*missing\.toml"),
    ],
)
def test_a_wrong_variable_is_refused_with_its_name(environ: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load(environ=environ, cwd=tmp_path)


def test_a_wrong_value_is_refused_even_where_a_stronger_source_overrules_it(tmp_path: Path) -> None:
    (tmp_path / "qo.toml").write_text("[worker]\nconcurrency = 0\n")
    with pytest.raises(ConfigError, match=r"qo\.toml says 0"):
        load({"worker.concurrency": 4}, environ={}, cwd=tmp_path)


def test_no_settings_file_is_no_error_but_an_unreadable_one_is(tmp_path: Path) -> None:
    assert load(environ={}, cwd=tmp_path) == Settings()
    (tmp_path / "qo.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"qo\.toml"):
        load(environ={}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("memory:", Memory()),
        ("local:.qo", Local(Path(".qo"))),
        ("local:~/queue", Local(Path("~/queue").expanduser())),
        ("s3://bucket", S3("bucket")),
        ("s3://bucket/", S3("bucket")),
        ("s3://bucket/team/nightly", S3("bucket", "team/nightly/")),
    ],
)
def test_a_store_text_names_one_place(text: str, location: object) -> None:
    assert parse(text) == location


@pytest.mark.parametrize(
    "text", ["", "bucket", "s3:bucket", "s3://a//b", "s3://a/ b", "memory: x", "memory://x", "s3:///x"]
)
def test_a_text_that_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_the_documentation_of_settings_agrees_with_the_code(setting: Setting) -> None:
    assert document_row(setting) in DOCUMENT.read_text().splitlines()


def test_the_documentation_names_no_setting_that_does_not_exist() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(SETTINGS)


def document_row(setting: Setting) -> str:
    if setting.default is None or setting.default == ():
        default = "unset"
    elif isinstance(setting.default, bool):
        default = "`true`" if setting.default else "`false`"
    else:
        number = isinstance(setting.default, float)
        default = f"`{setting.default:g}`" if number else f"`{setting.default}`"
    variables = ", ".join(f"`{name}`" for name in setting.env)
    return f"| `{setting.key}` | {variables} | {default} | {setting.kind.description} | {setting.help} |"
