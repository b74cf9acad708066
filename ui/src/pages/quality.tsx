/** What was expected of data, and found; and outputs that were not good enough. */

import type { JSX } from "preact";
import type { Check, Rejection } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { amend, href } from "../shell/router";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, plural, RunLink } from "../show/text";
import { WithDispatcher } from "./pipelines";

type Asked = Record<string, string>;

export function QualityPage({ query }: { query: Asked }): JSX.Element {
  return (
    <WithDispatcher title="Quality">{(dispatcher) => <All dispatcher={dispatcher} query={query} />}</WithDispatcher>
  );
}

function All({ dispatcher, query }: { dispatcher: Dispatcher; query: Asked }): JSX.Element {
  const { dataset = "", failed = "", before = "" } = query;
  const live = useLive(async () => {
    const [checks, rejections] = await Promise.all([
      dispatcher.get<{ checks: Check[]; next: string | null }>(["checks"], {
        dataset,
        failed: failed || null,
        before,
        limit: 100,
      }),
      dispatcher.get<{ rejections: Rejection[] }>(["rejections"], { dataset, limit: 20 }),
    ]);
    return { ...checks, rejections: rejections.rejections };
  }, [dataset, failed, before]);
  useSecond();
  return (
    <>
      <header class="head">
        <h1>Quality</h1>
      </header>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <label class="field">
          Dataset
          <input
            data-find
            value={dataset}
            placeholder="all"
            onChange={(event) =>
              amend(["quality"], { ...query, before: "", dataset: event.currentTarget.value.trim() })
            }
          />
        </label>
        <button
          type="button"
          aria-pressed={failed === "true"}
          onClick={() => amend(["quality"], { ...query, before: "", failed: failed ? "" : "true" })}
        >
          Only violations
        </button>
      </form>
      <Shown live={live} what="checks">
        {({ checks, next, rejections }) => (
          <>
            {checks.length > 0 && <ByName checks={checks} />}
            <Panel title="Checks" flush>
              {checks.length === 0 ? (
                <Empty title="No checks">
                  {failed ? "All expectations were met." : "Add expectations to a job: see the guide on quality."}
                </Empty>
              ) : (
                <Checks checks={checks} />
              )}
            </Panel>
            {next && (
              <footer class="head">
                <a class="button" href={href(["quality"], { ...query, before: next })}>
                  Older
                </a>
              </footer>
            )}
            {rejections.length > 0 && <Rejections rejections={rejections} />}
          </>
        )}
      </Shown>
    </>
  );
}

/** Each expectation as a row of squares, oldest to newest: a glance tells when it began to fail. */
function ByName({ checks }: { checks: Check[] }): JSX.Element {
  const rows = new Map<string, Check[]>();
  for (const check of checks) {
    const key = `${check.dataset} · ${check.name}`;
    rows.set(key, [check, ...(rows.get(key) ?? [])]);
  }
  return (
    <Panel title="By expectation, oldest to newest" flush>
      <table>
        <tbody>
          {[...rows].map(([key, found]) => (
            <tr key={key}>
              <td class="wrap" style={{ width: "45%" }}>
                {key}
              </td>
              <td>
                <div
                  style={{ display: "flex", gap: "3px", flexWrap: "wrap" }}
                  role="img"
                  aria-label={`${found.filter((each) => each.passed).length} of ${found.length} passed`}
                >
                  {found.slice(-60).map((each) => (
                    <span
                      key={`${each.task_id}${each.attempt}${each.position}`}
                      title={`${each.partition_key ?? ""} ${each.passed ? "passed" : "violated"}`}
                      class={each.passed ? "b-completed" : each.severity === "warn" ? "b-expired" : "b-failed"}
                      style={{ width: "10px", height: each.passed ? "14px" : "20px", borderRadius: "2px" }}
                    />
                  ))}
                </div>
              </td>
              <td class="number second nowrap">
                {found.filter((each) => each.passed).length}/{found.length}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Checks({ checks }: { checks: Check[] }): JSX.Element {
  return (
    <table class="stack">
      <Head columns={["result", "expectation", "dataset", "observed", "expected", "run", "when"]} />
      <tbody>
        {checks.map((each) => (
          <tr key={`${each.task_id}${each.attempt}${each.position}`}>
            <td>
              <Badge status={each.passed ? "passed" : each.severity === "warn" ? "warned" : "failed"} />
            </td>
            <td class="wrap">{each.name}</td>
            <td class="wrap">
              <Piece of={each} />
            </td>
            <td class="mono wrap" data-name="observed">
              {short(each.observed)}
            </td>
            <td class="mono wrap" data-name="expected">
              {short(each.expected)}
            </td>
            <td>
              <RunLink id={each.task_id} />
            </td>
            <td>
              <Ago at={each.at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Rejections({ rejections }: { rejections: Rejection[] }): JSX.Element {
  return (
    <Panel title="Rejected outputs" flush>
      <table class="stack">
        <tbody>
          {rejections.map((each) => (
            <tr key={`${each.task_id}${each.attempt}${each.location}`}>
              <td class="wrap">
                <Piece of={each} />
                <div class="s-failed">{each.reason}</div>
                <div class="mono quiet">{each.location}</div>
              </td>
              <td class="number">{each.rows !== null && plural(each.rows, "row")}</td>
              <td>
                <RunLink id={each.task_id} />
              </td>
              <td>
                <Ago at={each.at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Piece({ of }: { of: { dataset: string; partition_key: string | null } }): JSX.Element {
  return (
    <>
      <a href={href(["dataset", of.dataset], { partition: of.partition_key })}>{of.dataset}</a>{" "}
      <span class="quiet">{of.partition_key}</span>
    </>
  );
}

function short(value: unknown): string {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return text.length > 120 ? `${text.slice(0, 120)}…` : text;
}
