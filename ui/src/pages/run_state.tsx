/** How a run is now. */

import type { JSX } from "preact";
import { formatDuration, formatSpan } from "../core/duration";
import { seconds } from "../core/instant";
import type { RunShown } from "../dispatcher/answers";
import { useApp } from "../shell/app";
import { Badge } from "../show/badge";
import { ProgressShown, progressMatters } from "../show/progress";
import { Panel } from "../show/states";
import { Ago, At, plural } from "../show/text";

export function State({ run }: { run: RunShown }): JSX.Element {
  const { bucket } = useApp();
  const now = bucket.time.now();
  const left = (seconds(run.lease_expires_at) ?? 0) - now;
  const began = seconds(run.started_at);
  const ended = seconds(run.completed_at);
  return (
    <Panel>
      <dl class="facts">
        <dt>Status</dt>
        <dd>
          <Badge status={run.status} />{" "}
          {run.status === "pending" && (
            <span class="quiet">{run.released ? "released, waiting for a worker" : "withheld"}</span>
          )}
          {run.superseded && <span class="quiet">superseded: {run.superseded.text}</span>}
          {run.cancel_requested && run.status === "running" && <span class="s-expired"> asked to stop</span>}
        </dd>
        {progressMatters(run.progress, run.status) && (
          <>
            <dt>Progress</dt>
            <dd>
              <ProgressShown progress={run.progress} />
            </dd>
          </>
        )}
        {run.status === "running" && run.lease_expires_at && (
          <>
            <dt>Lease</dt>
            <dd>
              {left > 0
                ? `expires in ${formatDuration(left)}, unless it is renewed`
                : `expired ${formatDuration(-left)} ago`}
            </dd>
          </>
        )}
        {run.status === "pending" && (
          <>
            <dt>Due</dt>
            <dd>
              <Ago at={run.available_at} />
            </dd>
          </>
        )}
        {run.rescheduled > 0 && (
          <>
            <dt>Waits</dt>
            <dd>
              {run.reschedule_reason ?? "no reason was given"}{" "}
              <span class="quiet">· rescheduled {plural(run.rescheduled, "time")}</span>
            </dd>
          </>
        )}
        {began !== null && (
          <>
            <dt>Took</dt>
            <dd>
              {formatSpan((ended ?? now) - began)}
              {ended === null && " so far"}
            </dd>
          </>
        )}
        {run.operator.includes(":") && (
          <>
            <dt>Code</dt>
            <dd>
              {run.bundle === null ? (
                <span class="s-expired">the worker's own{run.code !== null && `, pinned as ${run.code}`}</span>
              ) : (
                <>
                  <span class="mono">{run.code}</span> <span class="quiet">in bundle {run.bundle.slice(0, 12)}</span>
                </>
              )}
            </dd>
          </>
        )}
        <dt>Runs</dt>
        <dd>
          {run.operator}{" "}
          <span class="quiet">
            on {run.queue}
            {run.worker_id && ` · ${run.worker_id}`}
          </span>
        </dd>
        <dt>Attempts</dt>
        <dd>
          {run.attempt}{" "}
          <span class="quiet">
            · {run.retry_count} of {run.max_retries} retries used
            {run.timeout_seconds ? ` · ${formatDuration(run.timeout_seconds)} for each attempt` : ""}
          </span>
        </dd>
        <dt>Created</dt>
        <dd>
          <Ago at={run.created_at} />{" "}
          <span class="quiet">
            <At at={run.created_at} />
          </span>
        </dd>
        {(run.cancelled_by || run.cancel_reason) && (
          <>
            <dt>Cancelled</dt>
            <dd>{[run.cancelled_by && `by ${run.cancelled_by}`, run.cancel_reason].filter(Boolean).join(": ")}</dd>
          </>
        )}
      </dl>
    </Panel>
  );
}
