"""latest: the latest row of each key, in whatever order rows arrive.

A task merges what is new into the buckets of its keys. The deletions of keys are rows of a second output, so that a row
that is older than the deletion of its key does not bring the key back.

    rows that are new      the latest row of each key
    minus those that lose  against the row, or the deletion, that is committed for their key
    replace                the rows of their keys, in buckets that are written again; all others stay
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from qo.spark.io.bucketing import BUCKET, Bucketed
from qo.spark.operators.deletion_memory import DeletionMemory
from qo.spark.operators.input_changes import InputChanges, open_changes
from qo.spark.operators.keyed_rows import (
    DELETED,
    KeyRules,
    column,
    latest_rows,
    rules_for,
    same_key,
    spread,
    tag_rows,
    touched_buckets,
)
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.operators.sequences import collectable, literal_of
from qo.spark.operators.standing_buckets import StandingBuckets, standing_buckets

BROADCAST_KEYS_MAX = 1_000_000  # With more keys, new and committed rows are sorted together.
WRITERS_AT_ONCE = "spark.sql.maxConcurrentOutputFileWriters"
OPEN_COST = "spark.sql.files.openCostInBytes"  # By which Spark decides how many files a task reads.
SPLIT_BYTES = 128 << 20  # Spark's own limit of what one task reads.
READING_TASKS_MAX = 200
_FRESH = "__qo_fresh"  # Whether a row is new to the output.
_OURS, _THEIRS = "__qo_ours", "__qo_theirs"


def run(context: Context) -> Frames:
    changes = open_changes(context)
    if changes is None:
        return context.skip_all()
    rules = rules_for(context.config, changes.added, changes.name, context.run.work.job)
    context.details["rows_in"] = changes.rows
    # A task writes the files of several buckets side by side, instead of sorting its rows by bucket.
    context.spark.conf.set(WRITERS_AT_ONCE, str(rules.buckets))
    return _Merge(context, changes, rules).frames()


@dataclass(frozen=True, slots=True)
class _New:
    """What is known of the new rows once they are reduced to one of each key."""

    rows: DataFrame
    keys: int
    buckets: list[int]
    has_null_keys: bool
    earliest: Any | None  # The smallest sequence, as it is collected; None: there is a null, or it is not known.


class _Merge:
    def __init__(self, context: Context, changes: InputChanges, rules: KeyRules) -> None:
        self._context = context
        self._changes = changes
        self._rules = rules
        self._rows = standing_buckets(context, 0)
        self._deletions = standing_buckets(context, 1) if rules.deletes is not None else None
        self._memory = DeletionMemory.of(context, rules, changes.added)

    def frames(self) -> Frames:
        added = tag_rows(self._changes.added, self._rules)
        if self._changes.removed is not None:
            return self._remade(added, tag_rows(self._changes.removed, self._rules))
        reduced = self._context.keep(latest_rows(added, self._rules, rows=self._changes.rows))
        if self._changes.is_first:
            return self._outputs(reduced, self._standing_buckets())
        return self._merged(reduced)

    def _remade(self, added: DataFrame, removed: DataFrame) -> Frames:
        """Make buckets anew from all that is there now: what came from rows that are gone cannot be told apart."""
        buckets = touched_buckets(added, removed)
        rows = tag_rows(self._changes.whole(), self._rules).where(column(BUCKET).isin(buckets))
        self._context.details["remade"] = "rows that had been read before were replaced or removed"
        return self._outputs(self._context.keep(latest_rows(rows, self._rules)), buckets)

    def _merged(self, reduced: DataFrame) -> Frames:
        new = self._describe(reduced)
        self._context.details["buckets_touched"] = len(new.buckets)
        if self._memory is not None:
            timely = self._memory.without_late(reduced, self._committed(new.buckets, reduced))
            new = self._describe(self._context.keep(timely))
        if new.keys > BROADCAST_KEYS_MAX:
            return self._merged_by_sorting(new)
        losers = self._losers(new)
        if losers is not None:
            same = same_key(new.rows, losers, self._rules, nulls=True)
            new = self._describe(self._context.keep(new.rows.join(F.broadcast(losers), same, "left_anti")))
        self._context.details["keys_changed"] = new.keys
        if not new.buckets:
            return self._context.skip_all()
        committed = self._committed(new.buckets, new.rows)
        keys = F.broadcast(new.rows.select(*self._rules.key_columns))
        same = same_key(committed, keys, self._rules, nulls=new.has_null_keys)
        others = committed.join(keys, same, "left_anti")
        merged = others.unionByName(new.rows, allowMissingColumns=True)
        return self._outputs(merged, new.buckets, are_known=True)

    def _merged_by_sorting(self, new: _New) -> Frames:
        committed = self._committed(new.buckets, new.rows).withColumn(_FRESH, F.lit(False))
        merged = committed.unionByName(new.rows.withColumn(_FRESH, F.lit(True)), allowMissingColumns=True)
        self._context.details["keys_changed"] = new.keys
        latest = latest_rows(merged, self._rules, column(_FRESH)).drop(_FRESH)
        return self._outputs(latest, new.buckets, are_known=True)

    def _losers(self, new: _New) -> DataFrame | None:
        """Return the keys whose new row is not later than the committed one; None if there are none.

        Keys and sequences are compared first: mostly all new rows are later, and nothing else has to be read.
        """
        rules, type_ = self._rules, new.rows.schema[self._rules.sequence_by].dataType
        if self._are_all_later(new, type_):
            return None
        committed = self._committed(new.buckets, new.rows)
        earliest = literal_of(new.earliest, type_)
        recent = committed if earliest is None else committed.where(rules.sequence >= earliest)
        theirs = recent.select(*rules.key_columns, rules.sequence.alias(_THEIRS))
        ours = F.broadcast(new.rows.select(*rules.key_columns, rules.sequence.alias(_OURS)))
        is_later = F.coalesce(
            column(_OURS) > column(_THEIRS), column(_OURS).isNotNull() & column(_THEIRS).isNull()
        )
        same = same_key(theirs, ours, rules, nulls=new.has_null_keys)
        contested = self._context.keep(theirs.join(ours, same & ~is_later, "left_semi").drop(_THEIRS))
        if contested.isEmpty():
            return None
        keys = F.broadcast(contested)
        both = [
            frame.join(keys, same_key(frame, keys, rules, nulls=True), "left_semi").withColumn(
                _FRESH, F.lit(fresh)
            )
            for frame, fresh in ((committed, False), (new.rows, True))
        ]
        # Of two that are the same in every column the committed one stays, and its bucket is not written again.
        decided = latest_rows(both[0].unionByName(both[1], allowMissingColumns=True), rules, column(_FRESH))
        return decided.where(~column(_FRESH)).select(*rules.key_columns)

    def _are_all_later(self, new: _New, type_: DataType) -> bool:
        """Whether the footers of the committed files say that no row of theirs is as late as any new one."""
        if new.earliest is None:
            return False
        standing = [each for each in (self._rows, self._deletions) if each is not None]
        footers = [each.footers(new.buckets) for each in standing]
        return all(
            each is not None and each.are_below(new.earliest, self._rules.sequence_by, type_) for each in footers
        )

    def _describe(self, rows: DataFrame) -> _New:
        rules, has_null = self._rules, F.lit(False)
        for each in rules.key_columns:
            has_null = has_null | each.isNull()
        facts = rows.groupBy(BUCKET).agg(
            F.count(F.lit(1)).alias("keys"),
            F.bool_or(has_null).alias("has_null_keys"),
            F.bool_or(rules.sequence.isNull()).alias("has_null_sequences"),
            F.min(collectable(rules.sequence, rows.schema[rules.sequence_by].dataType)).alias("earliest"),
        )
        by_bucket = facts.collect()
        is_bounded = bool(by_bucket) and not any(row["has_null_sequences"] for row in by_bucket)
        earliest = min(row["earliest"] for row in by_bucket) if is_bounded else None
        return _New(
            rows,
            sum(row["keys"] for row in by_bucket),
            sorted(row[BUCKET] for row in by_bucket),
            any(row["has_null_keys"] for row in by_bucket),
            earliest,
        )

    def _standing_buckets(self) -> set[int]:
        return {*self._rows.pieces, *(self._deletions.pieces if self._deletions is not None else ())}

    def _committed(self, buckets: Collection[int], like: DataFrame) -> DataFrame:
        """Return rows and deletions of these buckets, with the tags of new rows."""
        frame = like.where(F.lit(False))
        if (rows := self._rows.read(buckets)) is not None:
            frame = rows.withColumn(DELETED, F.lit(False)).withColumn(BUCKET, self._rules.bucket())
        if self._deletions is not None and (deletions := self._deletions.read(buckets)) is not None:
            deletions = deletions.withColumn(DELETED, F.lit(True)).withColumn(BUCKET, self._rules.bucket())
            frame = frame.unionByName(deletions, allowMissingColumns=True)
        return frame

    def _outputs(self, merged: DataFrame, buckets: Collection[int], *, are_known: bool = False) -> Frames:
        """Return the frames of the outputs. ``merged``: rows and deletions of the buckets that are written;
        ``are_known``: mostly rows as they are committed now."""
        if are_known:
            self._read_few_files_at_once(buckets)
        frames: dict[int, DataFrame | Bucketed] = {
            0: self._bucketed(merged.where(~column(DELETED)).drop(DELETED), self._rows, buckets, are_known)
        }
        if self._deletions is not None:
            deletions = merged.where(column(DELETED))
            if self._memory is not None:
                deletions = self._memory.forget_old(deletions, merged)
            deletions = deletions.select(*self._rules.key_columns, self._rules.sequence, BUCKET)
            frames[1] = self._bucketed(spread(deletions, self._rules), self._deletions, buckets, are_known)
        return frames

    def _read_few_files_at_once(self, buckets: Collection[int]) -> None:
        """Have a task read one file, if there are not very many: it then has one bucket in memory, and not all of those
        whose files Spark would pack together. The garbage collector has half as much to do."""
        files_of_task = self._rows.count_files(buckets) // READING_TASKS_MAX + 1
        self._context.spark.conf.set(OPEN_COST, str(SPLIT_BYTES // files_of_task))

    def _bucketed(
        self, frame: DataFrame, standing: StandingBuckets, buckets: Collection[int], are_known: bool
    ) -> Bucketed:
        emptied = sorted(standing.pieces.keys() & set(buckets))
        footers = standing.footers(buckets) if are_known else None
        plain = () if footers is None else footers.plain_columns(standing.revision)
        return Bucketed(frame, self._rules.buckets, emptied, standing.rows, plain)
