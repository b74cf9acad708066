"""What a page is let in with: the text after ``#c=`` in its link.

It is in the fragment, which browsers send to no server, and the page takes it out of the address as it starts.
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
    may_act: bool = False  # Only what the page offers; what it may do, the store decides.

    def text(self) -> str:
        """As it stands in a link, and as it is pasted: BASE64URL of JSON, without padding."""
        fields = asdict(self)
        if self.expires_at is not None:
            fields["expires_at"] = self.expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")


def generate_key() -> Key:
    """A key that nobody else has."""
    return Key(f"QO{secrets.token_hex(9).upper()}", secrets.token_urlsafe(30))
