"""How often the processes of a queue ask and write: intervals that are settings, and others.

The modules that keep an interval, and the model behind `qo cost`, take it from here.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 1000  # Keys of a LIST, versions of a listing of versions, objects of a delete of many.

DELETE_EVERY_S = 0.25  # Hints are removed this often, or when a batch is full.
DELETE_ONE_BY_ONE_MAX = 3  # So few are removed by single requests, which S3 does not charge for.
POST_EVERY_S = 0.25  # Notices are posted this often, the first one at once.
COUNT_EVERY_S = 120.0  # The lookout counts the workers.
COUNT_LEASED_EVERY_S = 60.0  # The same where workers lease shards.
LOOK_ANYWAY_EVERY_S = 3600.0  # A worker lists without a reason.
ORDERS_EVERY_S = 300.0  # A worker reads the orders without a reason.
SCAN_EVERY_S = 60.0  # In hybrid mode, the lookout reads a page of tasks.
ROSTER_EVERY_S = 60.0  # The monitor looks for silent workers.
INBOXES_EVERY_S = 600.0  # The lookout, and the monitor, list the inboxes of workers without a reason.
INBOXES_IN_USE_S = 600.0  # For so long after a task was routed, the lookout lists them in each round.
MARKERS_EVERY_S = 900.0  # The monitor removes delete markers of hints.
MARKED_PREFIXES = 4
VIEW_S = 30.0  # Whoever wakes workers, or routes tasks to them, lists them this often while it submits, …
VIEW_RECORDS_MAX = 16  # … and reads so many of their records.
MEMBERS_READ = 4  # Where shards are leased, so many records are read again with each count: one may be paused now.
# A task that runs for so long gets a lease hint; most end before, and need no hint but the one that they were found
# through. It must be well below STALE_AFTER: others then take that hint for one that was left behind.
INDEX_LEASE_AFTER_S = 2.0
SHARE_TTL_S = 15.0  # A share of a limit lasts for so long, or for the lease of a task if that is shorter.
RENEWALS_PER_SHARE = 3
BEATS_LATE_MAX = 0.2  # Heartbeats come up to this part of their interval late.


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The intervals and page sizes of a queue's requests. The defaults are those of the settings."""

    poll_min_s: float = 0.1  # The first pause after a poll that found nothing; each further one is doubled ...
    poll_max_s: float = 5.0  # ... up to this, or less if there are few workers.
    ready_page: int = 100
    log_scan_page: int = 50
    log_scan_memory: int = 200_000  # Ended tasks that a scan remembers and does not read again.
    heartbeat_s: float = 60.0
    change_s: float = 20.0  # A worker reports a change of its running tasks this often at most.
    check_s: float = 30.0
    waiting_s: float = 600.0  # Between listings of the tasks that wait for others.
    sweep_s: float = 300.0  # 0 for never.
    sweep_page: int = 1000
    lease_s: float = 60.0
    delete_batch: int = 100

    @property
    def renew_s(self) -> float:
        return self.lease_s / 3

    @property
    def share_s(self) -> float:
        """How often a worker that uses a limit renews its share."""
        return min(SHARE_TTL_S, self.lease_s) / RENEWALS_PER_SHARE


DEFAULT_RHYTHM = Rhythm()
