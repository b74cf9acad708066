/** What was committed to a dataset, and what became of its events. */

import type { JSX } from "preact";
import type { Commit, DatasetShown, EventLine } from "../dispatcher/answers";
import { href } from "../shell/router";
import { Badge } from "../show/badge";
import { Empty, Panel } from "../show/states";
import { Ago, count, plural, RunLink } from "../show/text";

export function Commits({
  name,
  commits,
  partition,
}: {
  name: string;
  commits: Commit[];
  partition: string;
}): JSX.Element {
  return (
    <Panel title={partition ? `Commits of ${partition}` : "Last commits"} flush>
      {commits.length === 0 ? (
        <Empty title="None yet" />
      ) : (
        <table class="stack">
          <tbody>
            {commits.map((each) => (
              <tr key={each.revision}>
                <td class="number quiet" data-name="revision">
                  {each.revision}
                </td>
                <td class="wrap">
                  <a href={href(["dataset", name], { partition: each.partition_key })}>
                    {each.partition_key ?? `cursor ${each.cursor}`}
                  </a>
                  {each.replaced_by !== null && <span class="quiet"> replaced</span>}
                </td>
                <td class="number">{each.rows !== null && plural(each.rows, "row")}</td>
                <td>
                  <RunLink id={each.task_id} />
                </td>
                <td class="quiet">
                  <Ago at={each.committed_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

export function Events({
  shown,
  events,
  partition,
}: {
  shown: DatasetShown;
  events: EventLine[];
  partition: string;
}): JSX.Element {
  const sum = Object.entries(shown.events).filter(([, n]) => n > 0);
  return (
    <Panel
      title={partition ? `Events of ${partition}` : "Events and their deliveries"}
      right={<span class="quiet">{sum.map(([state, n]) => `${count(n)} ${state}`).join(", ")}</span>}
      flush
    >
      {events.length === 0 ? (
        <Empty title="None yet" />
      ) : (
        <table>
          <tbody>
            {events.map((each) => (
              <tr key={each.seq}>
                <td>
                  <Badge status={each.state} />
                </td>
                <td class="wrap">
                  {each.partition_key ?? (each.cursor === null ? "all" : `cursor ${each.cursor}`)}
                  {each.reason && <div class="quiet">{each.reason}</div>}
                  {each.deliveries.map((delivery) => (
                    <div key={`${delivery.dag}.${delivery.job}`} class="quiet">
                      {delivery.dag}.{delivery.job}: {delivery.outcome}
                      {delivery.reason && `, ${delivery.reason}`}{" "}
                      {delivery.task_id && <RunLink id={delivery.task_id} />}
                    </div>
                  ))}
                </td>
                <td class="quiet">
                  <Ago at={each.received_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {shown.readers.length > 0 && (
        <p class="quiet" style={{ padding: "6px 14px" }}>
          Read by {shown.readers.join(", ")}
        </p>
      )}
    </Panel>
  );
}
