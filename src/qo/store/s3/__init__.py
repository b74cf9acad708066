"""AWS S3 and every server that speaks its protocol. Needs the ``s3`` extra.

Import it only to open such a store: its dependencies take a while to load.
"""

from __future__ import annotations

from qo.store.s3.aws_credentials import Credentials
from qo.store.s3.store import S3Store

__all__ = ["Credentials", "S3Store"]
