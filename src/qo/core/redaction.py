"""Remove secrets from text: given secrets, and anything that has the form of one.

This is the last resort, for secrets that user code puts into the text of an error. A secret that is neither given nor
of a known form cannot be told from other text, and stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "(hidden)"
SECRET_LEN_MIN = 8  # Shorter ones may be ordinary words.

_FORMS = (
    # The password in a URL: scheme://user:password@host.
    (re.compile(r"(?<=://)([^\s/:@'\"]{0,200}):([^\s/@'\"]{1,500})@"), rf"\1:{HIDDEN}@"),
    # Tokens of qo, and signed ones: a header, claims and a signature.
    (re.compile(r"\bqo[ws]?_[A-Za-z0-9_-]{32,200}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{16,2000}"), HIDDEN),
    # What makes a presigned link good.
    (re.compile(r"(X-Amz-(?:Signature|Security-Token)=)[^\s&'\"]{1,8000}", re.IGNORECASE), rf"\1{HIDDEN}"),
    # password=..., and 'DB_PASSWORD': '...' as an environment is printed.
    (
        re.compile(
            r"""((?:password|passwd|secret|api[._-]?key|secret[._-]?(?:access[._-]?)?key)(?:=|['"]\s?[:=]\s?)['"]?)"""
            r"""[^\s'",;&()]{4,500}""",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(\bBearer )[A-Za-z0-9._~+/=-]{8,8000}"), rf"\1{HIDDEN}"),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace secrets in the text by HIDDEN. ``secrets``: those that the caller knows, word for word."""
    for secret in sorted({each for each in secrets if len(each) >= SECRET_LEN_MIN}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text
