"""The rights of callers, one table: the routes enforce it, the OpenAPI files show it, and a test checks every route."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Need(StrEnum):
    """What a caller must present."""

    NOTHING = "nothing"
    SIGNATURE = "signature"  # Of the body, checked by the endpoint: webhooks.
    READER = "reader"
    SCALER = "scaler"  # Writers are, too.
    WRITER = "writer"
    ADMIN = "admin"
    WORKER = "worker"  # A token of workers. One that is bound to runtimes or queues has their tasks only.
    SCHEDULER = "scheduler"  # A token of workers that is bound to nothing.
    TASK = "task"  # The capability of one attempt.


# By operation. Readers read, writers deploy and run pipelines, admins manage tokens. Each includes the ones before.
PUBLIC: Mapping[str, Need] = {
    "livez": Need.NOTHING,
    "readyz": Need.NOTHING,
    "metrics": Need.READER,
    "list_dags": Need.READER,
    "show_dag": Need.READER,
    "list_versions": Need.READER,
    "show_version": Need.READER,
    "rebuild_progress": Need.READER,
    "deploy_version": Need.WRITER,
    "mark_ready": Need.WRITER,
    "activate_version": Need.WRITER,
    "rollback_dag": Need.WRITER,
    "pause": Need.WRITER,
    "resume": Need.WRITER,
    "list_datasets": Need.READER,
    "show_dataset": Need.READER,
    "list_partitions": Need.READER,
    "list_pieces": Need.READER,
    "list_events": Need.READER,
    "show_lineage": Need.READER,
    "show_column_lineage": Need.READER,
    "list_schema": Need.READER,
    "show_columns": Need.READER,
    "show_trend": Need.READER,
    "why": Need.READER,
    "list_checks": Need.READER,
    "list_rejections": Need.READER,
    "list_tasks": Need.READER,
    "show_task": Need.READER,
    "show_log": Need.READER,
    "cancel_task": Need.WRITER,
    "replay_task": Need.WRITER,
    "list_sources": Need.READER,
    "list_queues": Need.READER,
    "list_runtimes": Need.READER,
    "list_held": Need.READER,
    "list_health": Need.READER,
    "show_grid": Need.READER,
    "show_ranges": Need.READER,
    "list_waiting": Need.READER,
    "list_timeline": Need.READER,
    "list_durations": Need.READER,
    "show_effort": Need.READER,
    "search_names": Need.READER,
    "list_scaling": Need.READER,
    "take_scaler_turn": Need.SCALER,
    "record_decisions": Need.SCALER,
    "emit": Need.WRITER,
    "webhook": Need.SIGNATURE,
    "invalidate": Need.WRITER,
    "remove_partitions": Need.WRITER,
    "list_backfills": Need.READER,
    "show_backfill": Need.READER,
    "create_backfill": Need.WRITER,
    "pause_backfill": Need.WRITER,
    "resume_backfill": Need.WRITER,
    "cancel_backfill": Need.WRITER,
    "plan_version": Need.READER,
    "list_commits": Need.READER,
    "list_changes": Need.READER,
    "judge_prefixes": Need.WRITER,
    "list_tables": Need.READER,
    "show_catalog_config": Need.READER,
    "exchange_token": Need.SIGNATURE,  # The form holds a token.
    "list_namespaces": Need.READER,
    "show_namespace": Need.READER,
    "find_namespace": Need.READER,
    "list_namespace_tables": Need.READER,
    "load_table": Need.READER,
    "find_table": Need.READER,
    "lend_table_credentials": Need.READER,
    "list_bundles": Need.READER,
    "show_bundle": Need.READER,
    "create_bundle": Need.WRITER,
    "upload_bundle": Need.WRITER,
    "finalize_bundle": Need.WRITER,
    "create_token": Need.ADMIN,
    "list_tokens": Need.ADMIN,
    "revoke_token": Need.ADMIN,
}

INTERNAL: Mapping[str, Need] = {
    "livez": Need.NOTHING,
    "readyz": Need.NOTHING,
    "metrics": Need.NOTHING,  # Scraped from inside; the listener is not for the public.
    "claim_task": Need.WORKER,
    "exchange_tasks": Need.WORKER,  # The completions in it need the capabilities of their attempts.
    "fetch_task": Need.WORKER,
    "task_keys": Need.NOTHING,  # Public keys.
    "watched_sources": Need.SCHEDULER,
    "remember_source": Need.SCHEDULER,
    "emit_source": Need.SCHEDULER,
    "list_sinks": Need.SCHEDULER,
    "sink_step": Need.SCHEDULER,
    "report_sink": Need.SCHEDULER,
    "heartbeat": Need.TASK,
    "emit_events": Need.TASK,
    "complete": Need.TASK,
    "commit_segments": Need.TASK,
    "last_segment": Need.TASK,
    "credentials": Need.TASK,
    "task_inputs": Need.TASK,
    "task_bundle": Need.TASK,
    "task_standing": Need.TASK,
    "task_kept": Need.TASK,
}
