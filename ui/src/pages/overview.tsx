/** The queue at a glance. */

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { told } from "../core/desired";
import { FIRST_READS, lookOverview, type Overview } from "../queue/overview";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Badge, StatusBar } from "../show/badge";
import { Chart } from "../show/chart";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { count, plural } from "../show/text";
import { Tiles } from "./overview_tiles";

export function OverviewPage(): JSX.Element {
  const { queue } = useApp();
  const [counting, setCounting] = useState(false);
  const begun = useRef(0);
  const live = useLive(async () => {
    const goal = FIRST_READS[begun.current];
    if (goal === undefined) return lookOverview(queue);
    const seen = await lookOverview(queue, Math.max(0, goal - queue.shelf.size), begun.current ? 0 : 1);
    begun.current += 1;
    if (begun.current < FIRST_READS.length) setTimeout(() => void look.current());
    return seen;
  }, []);
  const look = useRef(live.look);
  look.current = live.look;
  const countAll = async (): Promise<void> => {
    setCounting(true);
    await lookOverview(queue, 5000, 1000).catch(() => undefined);
    await live.look();
    setCounting(false);
  };
  return (
    <>
      <header class="head">
        <h1>Overview</h1>
        {live.value && !live.value.total.exact && (
          <div class="right">
            <button type="button" onClick={() => void countAll()} disabled={counting}>
              {counting ? "Counting…" : `Continue counting (about ${plural(queue.tasks().pagesLeft, "request")})`}
            </button>
          </div>
        )}
      </header>
      <Shown live={live} what="the queue">
        {(overview) => <Glance overview={overview} />}
      </Shown>
    </>
  );
}

function Glance({ overview }: { overview: Overview }): JSX.Element {
  const { dispatcher } = useApp();
  return (
    <>
      {dispatcher && overview.total.exact && overview.total.count === 0 && (
        <div class="said">
          <span>
            No task was submitted to this queue. Tasks of pipelines are on{" "}
            <a href={href(["pipelines"])}>their own pages</a>.
          </span>
        </div>
      )}
      <Pauses overview={overview} />
      <Tiles overview={overview} />
      <div class="columns">
        <div class="stackwise">
          <Panel
            title="Tasks that changed, by minute, in the last hour"
            right={<span class="quiet">{overview.total.exact ? "" : "estimated from a sample"}</span>}
          >
            <Chart
              times={overview.history.times}
              series={[{ name: "changed", colour: "--accent", values: overview.history.changes, bars: true }]}
              label={`Tasks that changed in each of the last 60 minutes; ${count(overview.history.changes.reduce((a, b) => a + b, 0))} in all`}
              height={150}
            />
          </Panel>
          <Types overview={overview} />
        </div>
        <div class="stackwise">
          <Statuses overview={overview} />
          <Failing overview={overview} />
        </div>
      </div>
    </>
  );
}

function Pauses({ overview }: { overview: Overview }): JSX.Element | null {
  const { desired } = overview;
  if (!desired) return null;
  const lines = [
    ...(desired.queue ? [`The whole queue is paused ${told(desired.queue)}`] : []),
    ...Object.entries(desired.types).map(([name, pause]) => `Tasks of type ${name} are paused ${told(pause)}`),
    ...Object.entries(desired.workers).map(
      ([name, order]) => `Requested state of worker ${name}: ${order.wanted} ${told(order)}`,
    ),
  ];
  if (!lines.length) return null;
  return (
    <div class="said warn">
      {lines.slice(0, 8).map((line) => (
        <span key={line}>{line}</span>
      ))}
      {lines.length > 8 && <span class="quiet">and {lines.length - 8} more</span>}
    </div>
  );
}

function Statuses({ overview }: { overview: Overview }): JSX.Element {
  const { byStatus, read, total } = overview;
  const note =
    total.exact && read >= total.count
      ? plural(total.count, "task")
      : `${total.exact ? "" : "≈ "}${plural(total.count, "task")}, ${count(read)} of them read`;
  const shown = Object.entries(byStatus).filter(([, n]) => n > 0);
  return (
    <Panel title="By status" right={<span class="quiet">{note}</span>}>
      {shown.length === 0 ? (
        <Empty title="No tasks yet">
          Submit one: <code>qo submit --type TYPE</code>
        </Empty>
      ) : (
        <>
          <StatusBar counts={byStatus} tall label="Tasks by status" />
          <ul class="legend">
            {shown
              .sort((a, b) => b[1] - a[1])
              .map(([status, n]) => (
                <li key={status}>
                  <a href={href(["tasks"], { status })}>
                    <Badge status={status} />
                  </a>{" "}
                  <span class="second">{count(n)}</span>
                </li>
              ))}
          </ul>
        </>
      )}
    </Panel>
  );
}

function Types({ overview }: { overview: Overview }): JSX.Element {
  const sizeOf = (counts: Record<string, number>): number => Object.values(counts).reduce((a, b) => a + b, 0);
  const types = [...overview.byType].sort((a, b) => sizeOf(b[1]) - sizeOf(a[1]));
  return (
    <Panel title="By type" flush>
      {types.length === 0 ? (
        <Empty title="No tasks were read yet" />
      ) : (
        <table>
          <Head columns={["type", "#tasks", "status"]} />
          <tbody>
            {types.slice(0, 12).map(([type, counts]) => (
              <tr key={type}>
                <td class="cut">
                  <a href={href(["tasks"], { type })}>{type}</a>
                </td>
                <td class="number">{count(sizeOf(counts))}</td>
                <td style={{ width: "45%", verticalAlign: "middle" }}>
                  <StatusBar counts={counts} label={type} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

function Failing({ overview }: { overview: Overview }): JSX.Element {
  return (
    <Panel title="Failures" right={<a href={href(["failures"])}>all</a>} flush>
      {overview.failures.length === 0 ? (
        <Empty title="No failed task was seen">
          {overview.total.exact ? "" : "Not all tasks were read: see the page of failures."}
        </Empty>
      ) : (
        <table>
          <tbody>
            {overview.failures.slice(0, 8).map((group) => (
              <tr key={group.taskType + group.signature}>
                <td class="number s-failed" style={{ width: "3.5em" }}>
                  {count(group.tasks.length)}
                </td>
                <td class="wrap">
                  <a href={href(["task", group.tasks[0]!.id])}>{group.example.split("\n")[0] || group.signature}</a>
                  <div class="quiet">{group.taskType}</div>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}
