/** How a task is now. */

import type { JSX } from "preact";
import { formatDuration } from "../core/duration";
import { seconds } from "../core/instant";
import type { Task } from "../core/task";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { ProgressShown, progressMatters } from "../show/progress";
import { Panel } from "../show/states";
import { Ago, At, plural } from "../show/text";

export function State({ task, waits }: { task: Task; waits: string | null }): JSX.Element {
  useSecond();
  const { bucket } = useApp();
  const left = task.lease_expires_at === null ? 0 : (seconds(task.lease_expires_at) ?? 0) - bucket.time.now();
  const running = task.status === "running";
  return (
    <Panel>
      <dl class="facts">
        <dt>Status</dt>
        <dd>
          <Badge status={task.status} />
          {task.archived_from && <span class="quiet"> was {task.archived_from}</span>}
          {running && task.cancel_requested && <span class="s-expired"> asked to stop</span>}
        </dd>
        {running && (
          <>
            <dt>Lease</dt>
            <dd>
              {left > 0 ? (
                <>
                  expires in <strong>{formatDuration(left)}</strong>, unless it is renewed
                </>
              ) : (
                <span class="s-failed">expired {formatDuration(-left)} ago; a monitor will take the task back</span>
              )}
            </dd>
          </>
        )}
        {task.status === "pending" && (
          <>
            <dt>Due</dt>
            <dd>
              <Ago at={task.available_at} />{" "}
              <span class="quiet">
                <At at={task.available_at} />
              </span>
            </dd>
          </>
        )}
        {waits && (
          <>
            <dt>Waits</dt>
            <dd class="s-expired">{waits}</dd>
          </>
        )}
        {progressMatters(task.progress, task.status) && (
          <>
            <dt>Progress</dt>
            <dd>
              <ProgressShown progress={task.progress} />
            </dd>
          </>
        )}
        {task.worker_id && (
          <>
            <dt>Worker</dt>
            <dd>
              <a href={href(["worker", task.worker_id])}>{task.worker_id}</a>
            </dd>
          </>
        )}
        <dt>Attempts</dt>
        <dd>
          {task.attempt}
          <span class="quiet">
            {" "}
            · {task.retry_count} of {task.max_retries} retries used
            {task.reschedule_count ? `, rescheduled ${plural(task.reschedule_count, "time")}` : ""}
            {task.priority ? ` · priority ${task.priority}` : ""}
            {task.timeout_seconds ? ` · ${formatDuration(task.timeout_seconds)} for each attempt` : ""}
          </span>
        </dd>
        <dt>Created</dt>
        <dd>
          <Ago at={task.created_at} />{" "}
          <span class="quiet">
            <At at={task.created_at} />
          </span>
        </dd>
        {task.completed_at && (
          <>
            <dt>Ended</dt>
            <dd>
              <Ago at={task.completed_at} />{" "}
              <span class="quiet">
                <At at={task.completed_at} />
              </span>
            </dd>
          </>
        )}
        {task.expires_at && (
          <>
            <dt>Expires</dt>
            <dd>
              <Ago at={task.expires_at} />
            </dd>
          </>
        )}
        {(task.cancelled_by || task.cancel_reason) && (
          <>
            <dt>Cancelled</dt>
            <dd>
              {[task.cancelled_by && `by ${task.cancelled_by}`, task.cancel_reason].filter(Boolean).join(": ")}
            </dd>
          </>
        )}
        {task.idempotency_key && (
          <>
            <dt>Key</dt>
            <dd class="mono">{task.idempotency_key}</dd>
          </>
        )}
        {task.schedule && (
          <>
            <dt>Schedule</dt>
            <dd>
              <a href={href(["schedules"])}>{task.schedule}</a>
            </dd>
          </>
        )}
        <dt>Shard</dt>
        <dd>
          <a class="mono" href={href(["tasks"], { shard: task.shard })}>
            {task.shard}
          </a>
        </dd>
      </dl>
    </Panel>
  );
}
