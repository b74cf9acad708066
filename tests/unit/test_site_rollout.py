"""When a version that qo up deployed takes over, and what keeps it from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, cast

import pytest

from qo.api.contract.dag import RebuildAnswer
from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.views.live_versions import LivePipeline, LiveVersion
from qo.errors import Refused
from qo.up.installation import DeployedVersion, Installation
from qo.up.rollout import REFUSALS_MAX, Rollout

pytestmark = pytest.mark.fast

ACTIVE = LiveVersion(1, VersionStatus.ACTIVE, "ann")
BESIDE = LivePipeline(ACTIVE, LiveVersion(2, VersionStatus.STAGED, "ann"))
BUILT = RebuildAnswer(
    dag="shop", version=2, status="staged", jobs=["clean"], tasks={"completed": 3}, caught_up=True
)


@dataclass
class Pretended:
    """A site with one answer to how far the version is, and to its activation."""

    rebuild: RebuildAnswer = BUILT
    refusal: str | None = None
    replaced: int | None = 1
    asked: list[str] = field(default_factory=list[str])

    async def read(self, question: Callable[[Any], Any]) -> RebuildAnswer:
        return self.rebuild

    def client(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def post(self, path: str) -> None:
        self.asked.append(path)

    async def put(self, path: str, body: Any) -> dict[str, Any]:
        self.asked.append(path)
        if self.refusal is not None:
            raise Refused(self.refusal)
        return {"dag": "shop", "version": 2, "replaced": self.replaced, "changed": self.replaced is not None}


def rollout(*, keep: bool = False) -> Rollout:
    return Rollout(DeployedVersion(2, "staged", {"dag": "shop", "diff": {"rebuilt": []}}), keep)


async def advance(this: Rollout, site: Pretended, live: LivePipeline = BESIDE, epoch: int = 1) -> bool:
    return await this.advance(cast("Installation", site), live, epoch)


async def test_what_is_built_takes_over_and_is_then_left_alone() -> None:
    this, site = rollout(), Pretended(BUILT.model_copy(update={"caught_up": False}))
    assert not await advance(this, site)
    assert (this.settled, this.obstacle, site.asked) == (False, None, [])
    site.rebuild = BUILT
    assert await advance(this, site)
    assert (this.settled, this.obstacle) == (True, None)
    assert site.asked == ["/v1/dags/shop/versions/2/ready", "/v1/dags/shop/active"]
    assert not await advance(this, site, LivePipeline(LiveVersion(2, VersionStatus.ACTIVE, "ann")))
    assert len(site.asked) == 2


async def test_failures_and_a_wish_keep_it_from_taking_over() -> None:
    failed, kept = rollout(), rollout(keep=True)
    site = Pretended(BUILT.model_copy(update={"tasks": {"failed": 2}}))
    assert not await advance(failed, site)
    assert not await advance(kept, Pretended())
    assert (failed.settled, failed.obstacle) == (True, "2 of its tasks failed")
    assert kept.settled
    assert (kept.obstacle or "").startswith("it is built, and kept; activate it with qo dag ready shop 2")
    site.rebuild = BUILT  # Its tasks were replayed, and are well.
    assert await advance(failed, site)


async def test_a_refusal_is_told_and_tried_again_only_when_something_has_changed() -> None:
    this, site = rollout(), Pretended(refusal="reader would miss clean_orders")
    for _ in range(REFUSALS_MAX):  # The first may be due to something that came up just then.
        assert this.obstacle is None
        assert not await advance(this, site)
    assert (this.settled, this.obstacle) == (True, "reader would miss clean_orders")
    tried = len(site.asked)
    assert not await advance(this, site)
    assert len(site.asked) == tried
    site.refusal = None
    assert await advance(this, site, epoch=2)
    assert this.obstacle is None


@pytest.mark.parametrize(
    "live",
    [
        LivePipeline(ACTIVE, LiveVersion(3, VersionStatus.STAGED, "ben")),
        LivePipeline(ACTIVE),
        LivePipeline(LiveVersion(2, VersionStatus.ACTIVE, "ann")),
    ],
)
async def test_a_version_that_others_replaced_abandoned_or_activated_is_not_activated(live: LivePipeline) -> None:
    this, site = rollout(), Pretended()
    assert not await advance(this, site, live)
    assert (this.settled, this.staged, site.asked) == (True, None, [])


async def test_who_was_not_quick_enough_has_activated_nothing() -> None:
    this, site = rollout(), Pretended(replaced=None)
    assert not await advance(this, site)
    assert (this.settled, this.activated) == (True, None)
