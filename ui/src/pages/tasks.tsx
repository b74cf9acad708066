/** Tasks by status, type, shard, time and id. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { parseDuration } from "../core/duration";
import { allShards, taskIdOf } from "../core/keys";
import { STATUSES, type Status } from "../core/task";
import { catalogueFor, type Filter, type Found, findTasks, REACH } from "../queue/finding";
import type { Summary } from "../queue/shelf";
import { useApp } from "../shell/app";
import { amend, go, href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Choice, Filters, Word } from "../show/filters";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, count, plural, TaskLink } from "../show/text";

const PAGE = 50;
const CHOICES: readonly string[] = ["all", ...STATUSES];
const SINCE = ["5m", "1h", "6h", "1d", "7d"];

type Asked = Record<string, string>;

export function TasksPage({ query }: { query: Asked }): JSX.Element {
  const { queue } = useApp();
  const most = Math.max(PAGE, Number(query.show) || PAGE);
  const [reach, setReach] = useState(REACH);
  const [listing, setListing] = useState(false);
  const filter: Filter = {
    status: CHOICES.includes(query.status ?? "") ? (query.status as Status | "all") : "",
    type: query.type ?? "",
    shard: /^[0-9a-f]{1,4}$/.test(query.shard ?? "") ? query.shard! : "",
    sinceS: query.since ? parseDuration(query.since) : null,
  };
  const live = useLive(() => findTasks(queue, filter, most, reach), [filter, most, reach]);
  const listAll = async (): Promise<void> => {
    setListing(true);
    await catalogueFor(queue, filter)
      .advance(1000)
      .catch(() => undefined);
    await live.look();
    setListing(false);
  };
  return (
    <>
      <header class="head">
        <h1>Tasks</h1>
      </header>
      <Narrowed query={query} />
      <Shown live={live} what="tasks">
        {(found) => (
          <>
            <Panel flush>
              {found.tasks.length === 0 ? <None found={found} filter={filter} /> : <TaskTable tasks={found.tasks} />}
            </Panel>
            <footer class="head">
              <Reach found={found} />
              <div class="right">
                {found.pagesLeft > 0 && (
                  <button type="button" disabled={listing} onClick={() => void listAll()}>
                    {listing ? "Listing…" : `List all now (about ${plural(found.pagesLeft, "request")})`}
                  </button>
                )}
                {found.more && found.tasks.length < most && (
                  <button type="button" onClick={() => setReach(reach + 500)}>
                    Check 500 older tasks
                  </button>
                )}
                {found.tasks.length >= most && (
                  <button type="button" onClick={() => amend(["tasks"], { ...query, show: String(most + PAGE) })}>
                    Show {PAGE} more
                  </button>
                )}
              </div>
            </footer>
          </>
        )}
      </Shown>
    </>
  );
}

function Reach({ found }: { found: Found }): JSX.Element {
  const { size, listed } = found;
  const text = size.exact
    ? `${count(found.looked)} of ${plural(listed, "listed task")} checked, the last changed first.`
    : `The newest of ${count(listed)} listed so far, of about ${count(size.count)}. Each refresh lists more.`;
  return <p class="quiet">{text}</p>;
}

function None({ found, filter }: { found: Found; filter: Filter }): JSX.Element {
  if (found.listed === 0 && !filter.status && !filter.shard)
    return (
      <Empty title="This queue is empty">
        Submit a first task: <code>qo submit --type TYPE --input JSON</code>
      </Empty>
    );
  return (
    <Empty title="No task matches">
      {found.more ? "Not all tasks were checked: check older ones." : "Widen the filter."}
    </Empty>
  );
}

function Narrowed({ query }: { query: Asked }): JSX.Element {
  const { queue } = useApp();
  const prefix = useLive(() => queue.manifest(), []);
  const set = (name: string) => (value: string) => amend(["tasks"], { ...query, show: "", [name]: value });
  const length = prefix.value?.shard_prefix_len;
  return (
    <Filters idOf={taskIdOf} wrong="not a complete task id" open={(id) => go(["task", id])}>
      <Choice label="Status" value={query.status} any="all but archived" of={CHOICES} onChoose={set("status")} />
      <Word label="Type" value={query.type} onChoose={set("type")} />
      <Choice label="Changed within" value={query.since} any="any time" of={SINCE} onChoose={set("since")} />
      {length !== undefined && length <= 2 && (
        <Choice label="Shard" value={query.shard} any="all" of={allShards(length)} onChoose={set("shard")} />
      )}
      {length !== undefined && length > 2 && <Word label="Shard" value={query.shard} onChoose={set("shard")} />}
    </Filters>
  );
}

export function TaskTable({ tasks }: { tasks: Summary[] }): JSX.Element {
  useSecond();
  return (
    <table class="stack">
      <Head columns={["status", "id", "type", "updated", "next", "#attempt", "worker, error"]} />
      <tbody>
        {tasks.map((task) => (
          <tr key={task.id}>
            <td>
              <Badge status={task.status} />
            </td>
            <td>
              <TaskLink id={task.id} />
            </td>
            <td class="cut">{task.task_type}</td>
            <td>
              <Ago at={task.updated_at} />
            </td>
            <td class="second">
              <Next task={task} />
            </td>
            <td class="number" data-name="attempt">
              {task.attempt || ""}
            </td>
            <td class="cut">
              {task.last_error && task.status !== "completed" ? (
                <span class="s-failed" title={task.last_error}>
                  {task.last_error}
                </span>
              ) : (
                task.worker_id && <a href={href(["worker", task.worker_id])}>{task.worker_id}</a>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** When something is to happen to it: due, or its lease runs out. */
function Next({ task }: { task: Summary }): JSX.Element | null {
  if (task.status === "pending")
    return (
      <>
        due <Ago at={task.available_at} />
      </>
    );
  if (task.status === "running")
    return task.cancel_requested ? (
      <>asked to stop</>
    ) : (
      <>
        lease <Ago at={task.lease_expires_at} />
      </>
    );
  return null;
}
