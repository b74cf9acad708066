"""What is taken out of the text of errors before anybody is told, and what is left in."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.redaction import HIDDEN, SECRET_LEN_MIN, redact
from qo.worker.loop.outcome import text_of, traceback_of
from qo.worker.observe import secrets

pytestmark = pytest.mark.fast

JWT = f"eyJhbGciOiJFUzI1NiJ9.{'e30' * 6}.{'c2ln' * 10}"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("cannot reach postgresql://ada:pa:ss@db/x", f"cannot reach postgresql://ada:{HIDDEN}@db/x"),
        ("redis://:hunter22@cache:6379/0", f"redis://:{HIDDEN}@cache:6379/0"),
        ("host=db user=ada password=hunter22 port=1", f"host=db user=ada password={HIDDEN} port=1"),
        ("environ({'DB_PASSWORD': 'hunter22', 'A': 'b'})", f"environ({{'DB_PASSWORD': '{HIDDEN}', 'A': 'b'}})"),
        ('{"secret_key": "hunter22"}', f'{{"secret_key": "{HIDDEN}"}}'),
        ("spark.hadoop.fs.s3a.secret.key=hunter22", f"spark.hadoop.fs.s3a.secret.key={HIDDEN}"),
        (f"Authorization: Bearer {JWT}", f"Authorization: Bearer {HIDDEN}"),
        (f"refused {JWT}.", f"refused {HIDDEN}."),
        (f"token qow_{'a' * 43} is old", f"token {HIDDEN} is old"),
        (f"token qos_{'a' * 43} is old", f"token {HIDDEN} is old"),
        ("https://b/k?X-Amz-Signature=abcd&x=1", f"https://b/k?X-Amz-Signature={HIDDEN}&x=1"),
    ],
)
def test_what_shows_by_its_form_is_hidden(said: str, told: str) -> None:
    assert redact(said) == told
    assert redact(told) == told


@pytest.mark.parametrize(
    "said",
    [
        "https://example.com:8080/a@b",
        "the password is wrong",
        "secret: no such file",
        "s3://bucket/key not found",
        "file 'x.py', line 3, in qo_tasks",
        "mail ada@example.com",
        "KeyError: 'token'",
    ],
)
def test_what_tells_nothing_stays(said: str) -> None:
    assert redact(said) == said


letters = st.text(alphabet="ABC123", min_size=SECRET_LEN_MIN, max_size=20)


@given(text=st.text(alphabet="ABC123 -", max_size=60), known=st.lists(letters, max_size=3))
def test_nothing_that_is_known_is_left(text: str, known: list[str]) -> None:
    told = redact("".join([text, *known]), known)
    assert not any(secret in told for secret in known)


def test_secrets_of_the_process_are_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        "AWS_SECRET_ACCESS_KEY": "canary/of+the/bucket",
        "AWS_SESSION_TOKEN": "canary-of-the-session",
        "QO_WORKER_TOKEN": "old-canary-of-workers,new-canary-of-workers",
        "QO_TOKEN": "canary-of-people",
        "QO_STATE": "postgresql://ada:canary-of-state@127.0.0.1/qo",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    secrets.register_secret("canary-of-a-job")
    try:
        raise RuntimeError(f"failed with {dict(os.environ)}, canary-of-a-job and new-canary-of-workers")
    except RuntimeError as error:
        told = f"{text_of(error)}{traceback_of(error)}"
    assert "failed with" in told
    assert "canary" not in told
