"""Text without secrets: those that are known word for word, and those that show by their form.

It is the last resort, for what people's code puts into the text of an error. What neither is known nor has such a
form stays: nobody can tell it from other text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "(hidden)"
KNOWN_LEN_MIN = 8  # What is shorter may be any word.

_FORMS = (
    # The password in a URL: scheme://user:password@host.
    (re.compile(r"(?<=://)([^\s/:@'\"]{0,200}):([^\s/@'\"]{1,500})@"), rf"\1:{HIDDEN}@"),
    # Tokens of qo, and signed ones: a header, claims and a signature.
    (re.compile(r"\bqow?_[A-Za-z0-9_-]{32,200}"), HIDDEN),
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
    """``known``: secrets of whoever asks, word for word."""
    for secret in sorted({each for each in secrets if len(each) >= KNOWN_LEN_MIN}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text
