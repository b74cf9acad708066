/** What the next version changes: which jobs it builds again, and how its data compares with what is served. */

import type { JSX } from "preact";
import type { DatasetShown, Generation, VersionShown } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { href } from "../shell/router";
import { useLive } from "../shell/ticker";
import { Head } from "../show/head";
import { Panel, Shown } from "../show/states";
import { bytes, count } from "../show/text";

const DATASETS_MAX = 20;

interface Compared {
  name: string;
  serving: Generation | null;
  next: Generation | null;
}

interface Looked {
  added: string[];
  removed: string[];
  rebuilt: string[];
  datasets: Compared[];
}

async function look(dispatcher: Dispatcher, serving: VersionShown, number: number): Promise<Looked> {
  const next = await dispatcher.get<VersionShown>(["dags", serving.dag, "versions", String(number)]);
  const before = new Set(serving.jobs.map((each) => each.name));
  const after = new Set(next.jobs.map((each) => each.name));
  const rebuilt = next.jobs.filter((each) => each.rebuilt && before.has(each.name)).map((each) => each.name);
  const changed = new Set([...rebuilt, ...[...after].filter((each) => !before.has(each))]);
  const names = Object.entries(next.publish).filter(([, job]) => changed.has(job.replace(/\[\d+\]$/, "")));
  const datasets = await Promise.all(
    names.slice(0, DATASETS_MAX).map(async ([name, job]): Promise<Compared> => {
      const { generations } = await dispatcher.get<DatasetShown>(["datasets", `${serving.dag}.${job}`]);
      return {
        name,
        serving: generations.find((each) => each.status === "current") ?? null,
        next: generations.find((each) => each.versions.includes(number)) ?? null,
      };
    }),
  );
  return {
    added: [...after].filter((each) => !before.has(each)),
    removed: [...before].filter((each) => !after.has(each)),
    rebuilt,
    datasets,
  };
}

export function VersionChanges({
  dispatcher,
  serving,
  number,
}: {
  dispatcher: Dispatcher;
  serving: VersionShown;
  number: number;
}): JSX.Element {
  const live = useLive(() => look(dispatcher, serving, number), [serving.dag, number]);
  return (
    <Shown live={live} what="the changes">
      {(looked) => (
        <Panel title={`What version ${number} changes`} flush>
          <ul class="changes">
            {line("builds again", looked.rebuilt)}
            {line("adds", looked.added)}
            {line("removes", looked.removed)}
            {!looked.rebuilt.length && !looked.added.length && !looked.removed.length && (
              <li>No job is built again: it takes over as it is.</li>
            )}
          </ul>
          {looked.datasets.length > 0 && (
            <table class="stack">
              <Head columns={["dataset", "#partitions", "#rows", "#size"]} />
              <tbody>
                {looked.datasets.map(({ name, serving: was, next }) => (
                  <tr key={name}>
                    <td>
                      <a href={href(["dataset", name])}>{name}</a>
                    </td>
                    <td class="number" data-name="partitions">
                      {both(
                        was && count(was.partitions + was.segments),
                        next && count(next.partitions + next.segments),
                      )}
                    </td>
                    <td class="number" data-name="rows">
                      {both(was && count(was.rows), next && count(next.rows))}
                    </td>
                    <td class="number" data-name="size">
                      {both(was && bytes(was.bytes), next && bytes(next.bytes))}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </Panel>
      )}
    </Shown>
  );
}

function line(verb: string, jobs: string[]): JSX.Element | null {
  if (!jobs.length) return null;
  return (
    <li>
      <span class="quiet">{verb}</span> {jobs.slice(0, 30).join(", ")}
      {jobs.length > 30 && ` and ${jobs.length - 30} more`}
    </li>
  );
}

function both(was: string | null, is: string | null): JSX.Element {
  if (was === is) return <>{is ?? ""}</>;
  return (
    <>
      <span class="quiet">{was ?? "none"} →</span> {is ?? "none"}
    </>
  );
}
