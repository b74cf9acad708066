"""The board: one small object through which an idle queue learns of new tasks.

Who writes a ready hint posts a notice; who looks for tasks reads the board by conditional GET, which costs a twelfth of
a LIST. The board also says how many workers there are, which orders and which plan of shards are the latest, and which
process is the lookout.
All of it is a hint: a lost or false entry costs time or a request, never a task.

Notices are numbered. A reader that knows the board up to a number has missed notices if that number is below ``floor``:
then it lists the index.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

import msgspec
from msgspec.structs import replace

from qo.core import keys, wire
from qo.core.discovery import Due
from qo.core.ownership import unit_of
from qo.core.struct_preload import preload
from qo.core.task import Instant, Task
from qo.errors import CorruptRecord

NOTICES_MAX = 64
BATCH_MAX = 32  # More new tasks than this at a time are announced without notices: every reader lists.
OLD_AFTER = timedelta(minutes=5)
AHEAD_S = 60.0  # Tasks that are due within this time get a notice when their hint is written.
CREW_MAX = 64

FIRST_READERS = 6.0  # How many workers try to claim a task because they are among the first to read of it.
PREFERRED = 2.0  # How many more try because the task's id prefers them.
FIRST_IN_TURN = (
    3.0  # The same where workers read in turns: the next ones are certain to come. The owner tries as well.
)

REST_PER_WORKER_S, REST_LEAST_S = 0.1, 1.0

WATCH_TTL_MIN_S, WATCH_TTL_MAX_S = 5.0, 60.0

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that can be claimed, or soon."""

    task: str
    hint: str  # The key of its hint: in the ready index, or in the inbox of the only worker that should try it.
    due: Instant  # When it can be claimed.
    at: Instant  # When this notice was posted.
    etag: str = ""  # Of the hint.
    version: str | None = None
    number: Count = 0


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """The duty of the lookout. It ends by itself unless it is renewed."""

    by: str
    until: Instant
    rank: int = 1  # A process of higher rank takes the duty over.


class Board(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    token: str = ""  # Of the last write.
    sequence: Count = 0  # How many notices there have ever been.
    floor: Count = 0  # Notices up to this number may be missing.
    notices: list[Notice] = []
    workers: Count = 0
    crew: list[str] = []  # Marks of the workers, sorted, if they are not too many.
    orders: str = ""  # The token of control/desired.json.
    routed_at: Instant | None = None  # When a notice of a task in an inbox was last posted.
    watch: Watch | None = None
    plan: Count = 0  # The number of the plan that leases shards.
    roll: Count = 0  # Grows when a worker that leases shards comes, leaves or pauses: the lookout counts again.


preload(Notice, Watch, Board)


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """The intervals of the lookout, by how long its duty lasts without being renewed."""

    ttl_s: float = WATCH_TTL_MAX_S

    @classmethod
    def for_checks(cls, every_s: float) -> WatchTimes:
        """For a monitor that checks so often: the death of a lookout should not delay many checks."""
        return cls(min(WATCH_TTL_MAX_S, max(WATCH_TTL_MIN_S, 2 * every_s)))

    @property
    def renew_s(self) -> float:
        return self.ttl_s / 3

    @property
    def round_s(self) -> float:
        """Between two listings of the index."""
        return self.ttl_s / 6


class Rank:
    """Who does the duty of the lookout, if several can."""

    WORKER_ALONE = 0  # A worker without a monitor: it finds tasks, but cannot take back those of the dead.
    WORKER = 1
    MONITOR = 2


def decode_board(body: bytes) -> Board:
    """Read a board, without the notices that name no task. Raises CorruptRecord."""
    board = wire.decode(Board, body, keys.BOARD)
    if len(board.notices) > 2 * NOTICES_MAX or len(board.crew) > 2 * CREW_MAX:
        raise CorruptRecord(f"{keys.BOARD} has more entries than any writer makes")
    if all(_is_valid(notice) for notice in board.notices):
        return board
    return replace(board, notices=[notice for notice in board.notices if _is_valid(notice)])


def _is_valid(notice: Notice) -> bool:
    """Whether it names a task, and a hint of that task: in the ready index or an inbox."""
    if notice.hint.startswith(keys.READY):
        parsed = keys.parse_index(notice.hint)
        return parsed is not None and parsed.task_id == notice.task
    routed = keys.parse_inbox(notice.hint)
    return routed is not None and routed.task_id == notice.task


# Notices


def notice_of(task: Task, *, etag: str, version: str | None = None) -> Notice:
    """Return the notice of a pending task, to be posted; ``etag`` and ``version`` are those of its hint."""
    hint = keys.index_key(task) or keys.ready_key(task)
    return Notice(task=task.id, hint=hint, due=task.available_at, at=task.updated_at, etag=etag, version=version)


def post(board: Board, fresh: Sequence[Notice], *, now: datetime) -> Board:
    """Add notices, each instead of an older one of its task. Too many at once only raise the sequence."""
    if not fresh:
        return board
    sequence = board.sequence + len(fresh)
    if any(notice.hint.startswith(keys.INBOX) for notice in fresh):
        board = replace(board, routed_at=now)
    if len(fresh) > BATCH_MAX:
        return replace(board, sequence=sequence, floor=sequence)
    renewed = {notice.task for notice in fresh}
    numbered = [replace(notice, number=number, at=now) for number, notice in enumerate(fresh, board.sequence + 1)]
    notices = [*(each for each in board.notices if each.task not in renewed), *numbered]
    dropped, notices = notices[:-NOTICES_MAX], notices[-NOTICES_MAX:]
    floor = max(board.floor, *(each.number for each in dropped)) if dropped else board.floor
    return replace(board, sequence=sequence, floor=floor, notices=notices)


def announce(board: Board, count: int) -> Board:
    """Say that there are so many tasks more, without naming them: every reader lists."""
    sequence = board.sequence + count
    return replace(board, sequence=sequence, floor=sequence)


def drop_old(board: Board, *, now: datetime) -> Board:
    """Remove notices that every reader has read long ago."""
    recent = [each for each in board.notices if max(each.at, each.due) > now - OLD_AFTER]
    if len(recent) == len(board.notices):
        return board
    remaining = {each.number for each in recent}
    floor = max(board.floor, *(each.number for each in board.notices if each.number not in remaining))
    return replace(board, notices=recent, floor=floor)


def has_missed(board: Board, last_number: int) -> bool:
    """Whether a reader that knows the notices up to this number may have missed some."""
    return last_number < board.floor or last_number > board.sequence  # The latter if the board was started afresh.


class Reader(NamedTuple):
    """What decides which notices one worker follows."""

    worker_id: str
    workers: int
    rest_s: float  # The longest rest between two reads.
    units: frozenset[str] | None = None  # Those it owns, if shards are leased: then workers read in turns.

    @property
    def window_s(self) -> float:
        """For how long after a notice its readers are taken for the first ones."""
        first = FIRST_READERS if self.units is None else FIRST_IN_TURN
        return first * self.rest_s / max(1, self.workers)

    def follows(self, notice: Notice, now: datetime) -> bool:
        """Whether to try to claim the task, once it is due.

        Every try costs a request, so not all workers should. The first readers do, and a few that the task prefers.
        """
        age_s = (now - max(notice.at, notice.due)).total_seconds()
        return age_s <= self.window_s or self.is_preferred(notice)

    def is_preferred(self, notice: Notice) -> bool:
        if self.units is not None:
            return unit_of(notice.hint.split("/", 2)[1]) in self.units
        mark = zlib.crc32(f"{notice.task} {self.worker_id}".encode())
        return mark / 2**32 * max(1, self.workers) < PREFERRED


def rest_max_s(workers: int, configured_s: float) -> float:
    """Return the longest rest of a worker between two reads: the fewer they are, the shorter."""
    return min(configured_s, max(REST_LEAST_S, REST_PER_WORKER_S * workers))


def turn_s(workers: int, configured_s: float) -> float:
    """Return the time between two reads of each worker, if they read in turns.

    Turns at equal distances find a task as soon, on average, as nearly twice as many reads at random.
    """
    return min(configured_s, rest_max_s(workers, configured_s) * 2 * workers / (workers + 1))


def until_turn_s(place: int, workers: int, every_s: float, now_s: float) -> float:
    """Return the seconds until a worker's next turn; not the present one, if it has just been or is about to come."""
    left_s = (place / workers * every_s - now_s) % every_s
    return left_s + every_s if left_s < every_s / 4 else left_s


def due_from(notice: Notice) -> Due:
    """Return the notice as if its hint had been listed when it was posted."""
    if (routed := keys.parse_inbox(notice.hint)) is not None:
        minute, due_minute = routed.minute, routed.minute
    else:
        parsed = keys.parse_index(notice.hint)
        minute, due_minute = (0, 0) if parsed is None else (parsed.minute, parsed.due_minute)
    return Due(
        notice.task, notice.hint, notice.etag, minute, notice.at, notice.at, due_minute, version=notice.version
    )


# Workers


def mark_of(worker_id: str) -> str:
    return f"{zlib.crc32(worker_id.encode()):08x}"


def sign_on(board: Board, worker_id: str) -> Board:
    """Count one worker more, unless it is known."""
    if (mark := mark_of(worker_id)) in board.crew:
        return board
    return _with_crew(board, [*board.crew, mark], max(board.workers, len(board.crew)) + 1)


def sign_off(board: Board, worker_id: str) -> Board:
    """Count one worker less, and end its duty as the lookout."""
    mark, board = mark_of(worker_id), end_watch(board, worker_id)
    if mark not in board.crew:
        return board
    return _with_crew(board, [each for each in board.crew if each != mark], max(0, board.workers - 1))


def count_workers(board: Board, worker_ids: Iterable[str]) -> Board:
    """Replace the count by one that was made from the roster."""
    marks = {mark_of(each) for each in worker_ids}
    return _with_crew(board, marks, len(marks))


def _with_crew(board: Board, marks: Iterable[str], workers: int) -> Board:
    crew = sorted(marks)
    changed = replace(board, workers=workers, crew=crew if len(crew) <= CREW_MAX else [])
    return board if changed == board else changed


def rank_of(board: Board, worker_id: str) -> int:
    """Return the place of a worker among all, for sharing the index. Places may collide in large crews."""
    mark = mark_of(worker_id)
    return board.crew.index(mark) if mark in board.crew else int(mark, 16) % max(1, board.workers)


# The lookout


def is_watched(board: Board, now: datetime) -> bool:
    """Whether a lookout is on duty. One that claims the duty for longer than anybody may has none."""
    watch = board.watch
    return watch is not None and now < watch.until <= now + timedelta(seconds=2 * WATCH_TTL_MAX_S)


def end_watch(board: Board, by: str) -> Board:
    return replace(board, watch=None) if board.watch is not None and board.watch.by == by else board


def show_plan(board: Board, number: int) -> Board:
    return board if number <= board.plan else replace(board, plan=number)


def call_roll(board: Board) -> Board:
    return replace(board, roll=board.roll + 1)


def show_orders(board: Board, token: str) -> Board:
    return board if board.orders == token else replace(board, orders=token)


def take_watch(board: Board, by: str, rank: int, *, now: datetime, ttl_s: float = WATCH_TTL_MAX_S) -> Board | None:
    """Return the board with the duty taken or renewed, or None if another process has it."""
    watch = board.watch
    if watch is not None and watch.by != by and is_watched(board, now) and watch.rank >= rank:
        return None
    until = now + timedelta(seconds=ttl_s)
    return replace(board, watch=Watch(by=by, until=until, rank=rank))
