"""Credentials of the page: the text after ``#c=`` in its link.

Browsers never send the fragment of a URL to a server, and the page removes it from the address when it starts.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from qo.ui.signing import Key


@dataclass(frozen=True, slots=True)
class PageCredentials:
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at: datetime | None = None
    dispatcher_token: str | None = field(default=None, repr=False)
    may_act: bool = False  # Which buttons the page shows; the store itself enforces what it may do.

    def text(self) -> str:
        """Encode the credentials for a link, or for pasting: BASE64URL of JSON, without padding."""
        fields = asdict(self)
        if self.expires_at is not None:
            fields["expires_at"] = self.expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")


def generate_key() -> Key:
    """Generate a random key, known to this process alone."""
    return Key(f"QO{secrets.token_hex(9).upper()}", secrets.token_urlsafe(30))
