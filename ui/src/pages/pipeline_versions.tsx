/** The versions of a pipeline, and how far the next one is. */

import type { JSX } from "preact";
import type { Rebuild, VersionLine } from "../dispatcher/answers";
import { Badge } from "../show/badge";
import { Head } from "../show/head";
import { stuckText } from "../show/rebuild";
import { Panel } from "../show/states";
import { Ago, count, plural } from "../show/text";

export function RebuildProgress({ rebuild }: { rebuild: Rebuild }): JSX.Element {
  const done = rebuild.tasks.completed ?? 0;
  const all = Object.values(rebuild.tasks).reduce((a, b) => a + b, 0) + rebuild.remaining;
  return (
    <Panel
      title={`Version ${rebuild.version} is being built`}
      right={
        <Badge status={rebuild.caught_up ? "ready" : rebuild.stuck ? "failed" : "running"}>
          {rebuild.caught_up ? "caught up" : rebuild.stuck ? "stuck" : "building"}
        </Badge>
      }
    >
      <progress max={Math.max(1, all)} value={all ? done : 1} aria-label={`${done} of ${plural(all, "task")}`} />
      <p class="second">
        {count(done)} of {plural(all, "task")} done, in jobs {rebuild.jobs.join(", ") || "none"}
        {rebuild.tasks.failed ? `; ${rebuild.tasks.failed} failed` : ""}
      </p>
      {rebuild.stuck && <p class="s-failed">{stuckText(rebuild)}</p>}
      {rebuild.waits && rebuild.waits.length > 0 && (
        <ul>
          {rebuild.waits.map((wait) => (
            <li key={wait.job}>
              <strong>{wait.job}</strong> {wait.reason}
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

export function Versions({ versions, older }: { versions: VersionLine[]; older: boolean }): JSX.Element {
  return (
    <Panel title={older ? `The newest ${versions.length} versions` : "Versions"} flush>
      <table class="stack">
        <Head columns={["version", "state", "deployed", "by", "activated", "content"]} />
        <tbody>
          {versions.map((each) => (
            <tr key={each.version}>
              <td data-name="version">{each.version}</td>
              <td>
                <Badge status={each.status} />
              </td>
              <td data-name="deployed">
                <Ago at={each.created_at} />
              </td>
              <td>{each.created_by}</td>
              <td data-name="activated">
                <Ago at={each.activated_at} />
              </td>
              <td class="mono quiet">{each.content_hash.slice(0, 12)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}
