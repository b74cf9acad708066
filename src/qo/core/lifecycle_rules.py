"""What a bucket can remove by itself: the lifecycle rules of a queue, as `qo doctor --fix` sets and `qo lifecycle`
prints them.

They concern only what nobody needs: old versions and delete markers of hints, heartbeats and cursors, and uploads that
were never finished. Tasks are not among them. A rule knows the age of an object and nothing of its state, so it would
remove tasks that still wait; `qo purge` removes tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from xml.sax.saxutils import escape

from qo.core.keys import EPHEMERAL

HINTS_ID = "qo keeps no history of "
UPLOADS_ID = "qo aborts unfinished uploads of "
UPLOAD_DAYS = 7  # Longer than any attempt takes to write a file.


def hint_rule(prefix: str) -> dict[str, Any]:
    """Let old versions of the keys below the prefix expire after a day, and delete markers that hide nothing."""
    return {
        "ID": f"{HINTS_ID}{prefix}",
        "Filter": {"Prefix": prefix},
        "Status": "Enabled",
        "Expiration": {"ExpiredObjectDeleteMarker": True},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
    }


def upload_rule(prefix: str) -> dict[str, Any]:
    """Abort uploads below the prefix that nobody has finished for a week."""
    return {
        "ID": f"{UPLOADS_ID}{prefix}",
        "Filter": {"Prefix": prefix},
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UPLOAD_DAYS},
    }


def queue_rules(prefix: str, *, versioning: bool = True) -> list[dict[str, Any]]:
    """Return all rules of the queue below the prefix. Without versioning there are no old versions to remove."""
    hints = [hint_rule(f"{prefix}{each}") for each in EPHEMERAL] if versioning else []
    return [*hints, upload_rule(prefix)]


def rule_xml(rule: Mapping[str, Any]) -> str:
    """Return a rule as the S3 protocol spells it."""
    return f"<Rule>{_xml(rule)}</Rule>"


def _xml(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = cast("Mapping[str, Any]", value)
        return "".join(f"<{name}>{_xml(inner)}</{name}>" for name, inner in parts.items())
    return ("true" if value else "false") if isinstance(value, bool) else escape(str(value))
