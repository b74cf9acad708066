/** One task: how it is, what it was given and gave, what went wrong, and how it got here. */

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { members } from "../core/document";
import { shardOf, taskIdOf, taskKey } from "../core/keys";
import { readTask, type Task } from "../core/task";
import { type Moment, READ_AT_FIRST, Timeline } from "../queue/timeline";
import { isOverdue, whyUnclaimed } from "../queue/waiting";
import type { Bucket } from "../s3/client";
import { Problem } from "../s3/problem";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Failure, Panel, Shown } from "../show/states";
import { Copy } from "../show/text";
import { History } from "./history";
import { Actions } from "./task_actions";
import { State } from "./task_state";
import { Value } from "./task_value";

interface Looked {
  task: Task;
  text: string;
  moments: Moment[];
  versions: number;
  problem: Problem | null; // Of the history alone: the task itself is still worth seeing.
  waits: string | null; // Why nobody has claimed it, although it is due.
}

export function TaskPage({ id, query }: { id: string; query: Record<string, string> }): JSX.Element {
  const { queue, bucket } = useApp();
  const [most, setMost] = useState(READ_AT_FIRST);
  const taskId = taskIdOf(id);
  const timeline = useMemo(() => ({ of: null as Timeline | null }), []);
  const live = useLive(async () => {
    if (!taskId)
      throw new Problem("wrong", `${id} is not a task id.`, "A task id is a UUID, as `qo submit` prints it.");
    const { shard_prefix_len } = await queue.manifest();
    const key = taskKey(shardOf(taskId, shard_prefix_len), taskId);
    timeline.of ??= new Timeline(bucket, key);
    const looked = await lookAt(bucket, key, timeline.of, most);
    if (!isOverdue(looked.task, bucket.time.now())) return looked;
    const workers = await queue.roster.look().catch(() => null); // A viewer of tasks need not see workers.
    const waits = workers && whyUnclaimed(looked.task, workers, bucket.time.now(), queue.silentMaxS);
    return { ...looked, waits };
  }, [id, most]);
  return (
    <>
      {live.value === null && <h1 class="mono">{id}</h1>}
      <Shown live={live} what="the task">
        {(looked) => <Shape looked={looked} query={query} more={() => setMost(most + 200)} />}
      </Shown>
    </>
  );
}

async function lookAt(bucket: Bucket, key: string, timeline: Timeline, most: number): Promise<Looked> {
  const stored = await bucket.get(key);
  if (stored === null)
    throw new Problem(
      "missing",
      "This queue has no task with this id.",
      "Was it submitted to another bucket or prefix?",
    );
  const task = readTask(stored.text, key);
  try {
    const moments = await timeline.look(stored.etag || task.token, most);
    return { task, text: stored.text, moments, versions: timeline.total, problem: null, waits: null };
  } catch (error) {
    const problem = error instanceof Problem ? error : new Problem("wrong", String(error));
    return { task, text: stored.text, moments: [], versions: 0, problem, waits: null };
  }
}

function Shape({
  looked,
  query,
  more,
}: {
  looked: Looked;
  query: Record<string, string>;
  more: () => void;
}): JSX.Element {
  const { task, text } = looked;
  const raw = members(text);
  return (
    <>
      <header class="head">
        <div>
          <div class="crumbs">
            <a href={href(["tasks"], { type: task.task_type })}>{task.task_type}</a>
          </div>
          <h1 class="mono">
            {task.id} <Copy text={task.id} what="the id" />
          </h1>
        </div>
        <div class="right">
          <Actions task={task} />
        </div>
      </header>
      <State task={task} waits={looked.waits} />
      {task.last_error && task.status !== "completed" && (
        <Panel title={task.status === "pending" ? "Error of the last attempt" : "Error"}>
          <pre tabIndex={0} class="block s-failed">
            {task.last_error}
          </pre>
          {task.traceback && (
            <details open={task.status === "failed"} style={{ marginTop: "8px" }}>
              <summary>Traceback</summary>
              <pre tabIndex={0} class="block">
                {task.traceback.trimEnd()}
              </pre>
            </details>
          )}
        </Panel>
      )}
      <div class="columns">
        <Value name="Input" raw={raw.get("input")} place={task.input_ref} />
        <Value name="Output" raw={raw.get("output")} place={task.output_ref} />
      </div>
      {looked.problem ? (
        <Failure problem={looked.problem} />
      ) : (
        <History moments={looked.moments} total={looked.versions} query={query} id={task.id} more={more} />
      )}
    </>
  );
}
