/** The generations of a dataset, and which one is current. */

import type { JSX } from "preact";
import type { DatasetShown, Generation } from "../dispatcher/answers";
import { href } from "../shell/router";
import { Badge } from "../show/badge";
import { Head } from "../show/head";
import { Panel } from "../show/states";
import { Ago, bytes, count } from "../show/text";

export function Generations({
  name,
  shown,
  chosen,
}: {
  name: string;
  shown: DatasetShown;
  chosen: string;
}): JSX.Element {
  const row = (each: Generation): JSX.Element => (
    <tr key={each.id}>
      <td>
        <Badge status={each.status} />
        {each.status === "current" && <span class="quiet"> ← current for all readers</span>}
      </td>
      <td>
        <a
          class="mono"
          aria-current={each.id === chosen}
          href={href(["dataset", name], { generation: each.id })}
          title={each.id}
        >
          {each.id.slice(0, 13)}…
        </a>
      </td>
      <td class="second">{each.versions.map((n) => `v${n}`).join(", ")}</td>
      <td class="number" data-name="parts">
        {each.partitions || each.segments ? `${count(each.partitions + each.segments)}` : 0}
      </td>
      <td class="number" data-name="rows">
        {count(each.rows)}
      </td>
      <td class="number nowrap">{bytes(each.bytes)}</td>
      <td class="number" data-name="cursor">
        {each.cursor ?? ""}
      </td>
      <td>
        <Ago at={each.created_at} />
      </td>
    </tr>
  );
  return (
    <Panel
      title="Generations"
      right={
        <span class="quiet">
          to restore an earlier one, <a href={href(["pipeline", shown.dataset.dag])}>roll its pipeline back</a>
        </span>
      }
      flush
    >
      <table class="stack">
        <Head columns={["state", "generation", "versions", "#parts", "#rows", "#size", "#cursor", "since"]} />
        <tbody>{shown.generations.map(row)}</tbody>
      </table>
    </Panel>
  );
}
