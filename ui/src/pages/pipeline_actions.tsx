/** What may be done with a pipeline: pause, resume, activate the next version, roll back. */

import type { JSX } from "preact";
import type { Cutover, DagLine, Rebuild, VersionShown } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { useApp } from "../shell/app";
import { Confirm } from "../show/confirm";
import { count, plural } from "../show/text";

export interface Actionable {
  shown: VersionShown;
  line: DagLine | null;
  rebuild: Rebuild | null;
}

export function PipelineActions({
  dispatcher,
  looked,
}: {
  dispatcher: Dispatcher;
  looked: Actionable;
}): JSX.Element | null {
  const { mayAct } = useApp();
  const { shown, line, rebuild } = looked;
  if (!mayAct) return null;
  const paused = shown.paused !== null;
  return (
    <>
      <Confirm
        button={paused ? "Resume" : "Pause"}
        title={paused ? "Resume this pipeline?" : "Pause this pipeline?"}
        reason={!paused}
        act={async (reason) => {
          await dispatcher.post(
            ["dags", shown.dag, paused ? "resume" : "pause"],
            paused ? {} : { reason: reason ?? "" },
          );
          return paused ? "resumed" : "paused";
        }}
      >
        {paused
          ? "Waiting tasks are started again."
          : "Running tasks continue; no new tasks are started until you resume it."}
      </Confirm>
      {line?.next != null && rebuild && <Activate dispatcher={dispatcher} dag={shown.dag} rebuild={rebuild} />}
      {line?.previous != null && (
        <Confirm
          button={`Roll back to ${line.previous}`}
          title={`Roll back to version ${line.previous}?`}
          danger
          act={async () => {
            const answer = await dispatcher.post<Cutover>(["dags", shown.dag, "rollback"], {
              replaces: line.active,
            });
            const stopped = answer.cancelled + answer.cancel_requested;
            const of = `of version ${answer.replaced}`;
            const also = plural(stopped, `task ${of} was cancelled`, `tasks ${of} were cancelled`);
            return `version ${answer.active} is active${stopped ? `; ${also}` : ""}`;
          }}
        >
          All datasets switch to the data of version {line.previous} at once. Tasks of version {line.active} are
          cancelled.
        </Confirm>
      )}
    </>
  );
}

/** What is not whole takes over only for who says so; the dispatcher is told that it was said. */
function Activate({
  dispatcher,
  dag,
  rebuild,
}: {
  dispatcher: Dispatcher;
  dag: string;
  rebuild: Rebuild;
}): JSX.Element {
  const { version, tasks, status } = rebuild;
  const left = rebuild.remaining + (tasks.pending ?? 0) + (tasks.running ?? 0);
  const lacking = [
    ...(tasks.failed ? [`${count(tasks.failed)} of its tasks failed`] : []),
    ...(left ? [`${plural(left, "task")} left`] : []),
  ].join(", ");
  return (
    <Confirm
      button={`Activate ${version}`}
      title={`Activate version ${version}?`}
      sure={lacking ? "Activate it incomplete" : null}
      act={async () => {
        const force = lacking !== "";
        if (status === "staged" && !force)
          await dispatcher.post(["dags", dag, "versions", String(version), "ready"]);
        const answer = await dispatcher.put<Cutover>(["dags", dag, "active"], { version, force });
        return `version ${answer.active} is active`;
      }}
    >
      All datasets switch at once.{" "}
      {lacking
        ? `The version is incomplete: ${lacking}. Missing data stays missing until it is built.`
        : "The version has caught up."}
    </Confirm>
  );
}
