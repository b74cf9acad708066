/** How a task got where it is: every state it was in, with durations, and what differs between any two. */

import type { JSX } from "preact";
import { sortedDiff } from "../core/diff";
import { Exact, parseExact } from "../core/document";
import { formatSpan } from "../core/duration";
import { type Moment, type Step, stepsOf } from "../queue/timeline";
import { amend } from "../shell/router";
import { Shape } from "../show/badge";
import { Head } from "../show/head";
import { Empty, Panel } from "../show/states";
import { Ago, exact, plural } from "../show/text";

interface Wanted {
  moments: Moment[];
  total: number;
  query: Record<string, string>;
  id: string;
  more: () => void;
}

export function History({ moments, total, query, id, more }: Wanted): JSX.Element {
  if (!moments.length)
    return (
      <Panel title="History">
        <Empty title="No versions">
          The bucket keeps no versions; `qo doctor` explains how to turn versioning on.
        </Empty>
      </Panel>
    );
  return (
    <div class="columns">
      <Panel title="History" right={<span class="quiet">{plural(total, "version")}</span>}>
        {moments.length < total && (
          <p style={{ marginBottom: "10px" }}>
            <button type="button" onClick={more}>
              Read {plural(total - moments.length, "older version")}
            </button>
          </p>
        )}
        <Steps steps={stepsOf(moments)} />
      </Panel>
      <Compare moments={moments} query={query} id={id} />
    </div>
  );
}

function Steps({ steps }: { steps: Step[] }): JSX.Element {
  return (
    <ol class="steps">
      {steps.map((step) => {
        const { task } = step.last;
        const ended = task.last_error && ["failed", "pending", "cancelled"].includes(task.status) && task.last_error;
        return (
          <li key={step.first.version.versionId}>
            <span class="dot">
              <Shape status={task.status} />
            </span>
            <div>
              <strong>{step.what}</strong>
              {step.count > 1 && <span class="quiet"> · renewed {step.count - 1}×</span>}
              <div class="quiet">
                <span title={task.updated_at}>{exact(step.first.task.updated_at)}</span>
                {task.worker_id && ` · ${task.worker_id}`}
              </div>
              {ended && <div class="s-failed wrap">{ended.split("\n")[0]}</div>}
            </div>
            <span class="second nowrap">
              {step.tookS === null ? <Ago at={step.first.task.updated_at} /> : formatSpan(step.tookS)}
            </span>
          </li>
        );
      })}
    </ol>
  );
}

function Compare({
  moments,
  query,
  id,
}: {
  moments: Moment[];
  query: Record<string, string>;
  id: string;
}): JSX.Element {
  const at = (version: string | undefined, otherwise: number): Moment =>
    moments.find((each) => each.version.versionId === version) ?? moments[Math.max(0, otherwise)]!;
  const before = at(query.from, moments.length - 2);
  const after = at(query.to, moments.length - 1);
  const differences = sortedDiff(parseExact(before.text), parseExact(after.text));
  const choose = (name: "from" | "to", value: string): void => amend(["task", id], { ...query, [name]: value });
  const chooser = (name: "from" | "to", chosen: Moment): JSX.Element => (
    <label class="field">
      {name === "from" ? "From" : "To"}
      <select value={chosen.version.versionId} onChange={(event) => choose(name, event.currentTarget.value)}>
        {moments.map((each, n) => (
          <option key={each.version.versionId} value={each.version.versionId}>
            {n + 1}. {each.task.status} {exact(each.task.updated_at).slice(11)}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <Panel title="What changed">
      <div class="filters" style={{ marginBottom: "10px" }}>
        {chooser("from", before)}
        {chooser("to", after)}
      </div>
      {differences.length === 0 ? (
        <Empty title="No differences" />
      ) : (
        <table class="diff">
          <Head columns={["where", "was", "is"]} />
          <tbody>
            {differences.slice(0, 200).map((each) => (
              <tr key={each.path}>
                <td>{each.path}</td>
                <td class="was">{shown(each.before)}</td>
                <td class="is">{shown(each.after)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

function shown(value: unknown): string {
  if (value === undefined) return "–";
  if (value instanceof Exact) return value.text;
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}
