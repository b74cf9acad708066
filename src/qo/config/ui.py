"""The settings of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from qo.config import kinds
from qo.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class UiSettings:
    role_arn: str | None = setting(
        None,
        "QO_UI_ROLE_ARN",
        kind=kinds.TEXT,
        help="The role that qo ui credentials assumes, restricted to the queue; unset: the user itself, restricted.",
    )
