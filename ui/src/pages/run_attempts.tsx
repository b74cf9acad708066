/** The attempts of a run, and what it read and committed. */

import type { JSX } from "preact";
import { formatSpan } from "../core/duration";
import { seconds } from "../core/instant";
import type { RunShown } from "../dispatcher/answers";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { Shape } from "../show/badge";
import { Empty, Panel } from "../show/states";
import { At, bytes, plural } from "../show/text";

export function Attempts({ run }: { run: RunShown }): JSX.Element {
  const { bucket } = useApp();
  return (
    <Panel title="Attempts">
      {run.attempts.length === 0 ? (
        <Empty title="None yet">
          See what it waits for: <a href={href(["why"], { target: run.id })}>why?</a>
        </Empty>
      ) : (
        <ol class="steps">
          {run.attempts.map((each) => {
            const took = (seconds(each.ended_at) ?? bucket.time.now()) - (seconds(each.started_at) ?? 0);
            return (
              <li key={each.attempt}>
                <span class="dot">
                  <Shape status={each.outcome ?? "running"} />
                </span>
                <div>
                  <strong>
                    {each.attempt}. {each.outcome?.replaceAll("_", " ") ?? "running"}
                  </strong>
                  <div class="quiet">
                    <At at={each.started_at} />
                    {each.worker_id && ` · ${each.worker_id}`}
                  </div>
                  {each.error && <div class="s-failed wrap">{each.error.split("\n")[0]}</div>}
                  {each.packages?.map((difference) => (
                    <div key={difference} class="s-expired wrap">
                      another package than was deployed: {difference}
                    </div>
                  ))}
                </div>
                <span class="second nowrap">{formatSpan(took)}</span>
              </li>
            );
          })}
        </ol>
      )}
    </Panel>
  );
}

export function Pieces({ run, names }: { run: RunShown; names: Map<string, string> }): JSX.Element {
  const link = (id: string, partition: string | null): JSX.Element => {
    const name = names.get(id);
    return name ? (
      <a href={href(["dataset", name], { partition })}>{name}</a>
    ) : (
      <span class="mono">{id.slice(0, 13)}…</span>
    );
  };
  return (
    <Panel title="Read and committed" flush>
      {run.inputs.length + run.commits.length === 0 ? (
        <Empty title="Nothing yet" />
      ) : (
        <table>
          <tbody>
            {run.inputs.map((each) => (
              <tr key={`${each.position}${each.dataset_id}${each.partition_key}`}>
                <td class="quiet">read</td>
                <td class="wrap">
                  {link(each.dataset_id, each.partition_key)}{" "}
                  {each.partition_key ??
                    (each.cursor_upto === null
                      ? "all of it"
                      : `cursor ${each.cursor_after ?? 0}–${each.cursor_upto}`)}
                </td>
                <td class="number quiet">
                  {each.revision === null
                    ? "nothing"
                    : `${each.partition_key === null ? "as of " : ""}revision ${each.revision}`}
                </td>
              </tr>
            ))}
            {run.commits.map((each) => (
              <tr key={each.revision}>
                <td class="s-completed">committed</td>
                <td class="wrap">
                  {link(each.dataset_id, each.partition_key)} {each.partition_key ?? `cursor ${each.cursor}`}
                  <div class="quiet">
                    {[
                      each.rows !== null && plural(each.rows, "row"),
                      bytes(each.bytes),
                      each.replaced_by !== null && "replaced since",
                    ]
                      .filter(Boolean)
                      .join(", ")}
                  </div>
                </td>
                <td class="number quiet">revision {each.revision}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}
