/** Failed tasks, grouped by what went wrong. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type Group, grouped } from "../core/errors";
import { findTasks } from "../queue/finding";
import { move } from "../queue/moves";
import type { Summary } from "../queue/shelf";
import { useApp } from "../shell/app";
import { amend, href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Confirm } from "../show/confirm";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, count, plural, TaskLink } from "../show/text";

const MOST = 1000;
const AT_ONCE = 8;

export function FailuresPage({ query }: { query: Record<string, string> }): JSX.Element {
  const { queue } = useApp();
  useSecond();
  const [reach, setReach] = useState(300);
  const type = query.type ?? "";
  const live = useLive(
    () => findTasks(queue, { status: "failed", type, shard: "", sinceS: null }, MOST, reach),
    [type, reach],
  );
  return (
    <>
      <header class="head">
        <h1>Failures</h1>
        {type && (
          <button type="button" onClick={() => amend(["failures"], {})}>
            of type {type} ✕
          </button>
        )}
      </header>
      <Shown live={live} what="failed tasks">
        {(found) => {
          const groups = grouped(found.tasks);
          const largest = groups[0]?.tasks.length ?? 1;
          return (
            <>
              {groups.length === 0 && (
                <Panel>
                  <Empty title="No failed task was found">
                    {found.more || found.pagesLeft ? "Not all tasks were checked yet." : "All tasks were checked."}
                  </Empty>
                </Panel>
              )}
              {groups.map((group) => (
                <Kind key={group.taskType + group.signature} group={group} largest={largest} />
              ))}
              <footer class="head">
                <p class="quiet">
                  {plural(found.tasks.length, "failed task")} among the {count(found.looked)} last changed, of{" "}
                  {found.size.exact ? "" : "about "}
                  {count(found.size.count)}.
                </p>
                {found.more && (
                  <div class="right">
                    <button type="button" onClick={() => setReach(reach + 1000)}>
                      Check 1,000 older tasks
                    </button>
                  </div>
                )}
              </footer>
            </>
          );
        }}
      </Shown>
    </>
  );
}

function Kind({ group, largest }: { group: Group<Summary>; largest: number }): JSX.Element {
  const { queue, mayAct } = useApp();
  const [open, setOpen] = useState(false);
  const replay = async (): Promise<string> => {
    const { shard_prefix_len } = await queue.manifest();
    const waiting = [...group.tasks];
    let [done, refused] = [0, 0];
    const one = async (): Promise<void> => {
      for (let task = waiting.pop(); task; task = waiting.pop())
        await move(queue.bucket, shard_prefix_len, task.id, "replay").then(
          () => (done += 1),
          () => (refused += 1),
        );
    };
    await Promise.all(Array.from({ length: AT_ONCE }, one));
    return `${count(done)} replayed${refused ? `, ${count(refused)} refused` : ""}`;
  };
  const shown = open ? group.tasks.slice(0, 200) : group.tasks.slice(0, 3);
  return (
    <Panel
      title={
        <>
          <span class="s-failed">{count(group.tasks.length)} ×</span> {group.taskType}
        </>
      }
      right={
        mayAct && (
          <Confirm
            button={`Replay ${group.tasks.length === 1 ? "it" : `all ${count(group.tasks.length)}`}`}
            title={`Replay ${plural(group.tasks.length, "task")}?`}
            act={replay}
          >
            Each task becomes pending at once, with all its retries. Fix the cause of the error first.
          </Confirm>
        )
      }
    >
      <div class="bar thin" role="img" aria-label={plural(group.tasks.length, "task")}>
        <span class="b-failed" style={{ width: `${(100 * group.tasks.length) / largest}%` }} />
      </div>
      <pre tabIndex={0} class="block">
        {group.example || group.signature}
      </pre>
      <ul class="legend">
        {shown.map((task) => (
          <li key={task.id}>
            <TaskLink id={task.id} />{" "}
            <span class="quiet">
              <Ago at={task.updated_at} />
            </span>
          </li>
        ))}
        {group.tasks.length > 3 && (
          <li>
            <button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)}>
              {open ? "fewer" : `${group.tasks.length - 3} more`}
            </button>
          </li>
        )}
      </ul>
      <p class="quiet">
        <a href={href(["tasks"], { status: "failed", type: group.taskType })}>all failed tasks of this type</a>
      </p>
    </Panel>
  );
}
