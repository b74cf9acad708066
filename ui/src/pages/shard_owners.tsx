/** Which worker owns which block of shards, and since when: what `qo shards` prints. */

import type { JSX } from "preact";
import { seconds } from "../core/instant";
import type { OwnedBlock } from "../queue/owners";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { useSecond } from "../shell/ticker";
import { Head } from "../show/head";
import { Panel } from "../show/states";
import { Ago, count, plural } from "../show/text";

export function ShardOwners({ blocks }: { blocks: OwnedBlock[] }): JSX.Element {
  useSecond();
  const free = blocks.filter((block) => block.grant === null).reduce((sum, block) => sum + block.shards, 0);
  return (
    <Panel
      title="Owners"
      right={
        <span class="quiet">{free ? `${plural(free, "shard")} without an owner: every worker lists them` : ""}</span>
      }
      flush
    >
      <table class="stack">
        <Head columns={["shards", "#number", "owner", "since", "heard", "expires"]} />
        <tbody>
          {blocks.map((block) => (
            <tr key={block.first}>
              <td class="nowrap">{block.first === block.last ? block.first : `${block.first}-${block.last}`}</td>
              <td class="number" data-name="number">
                {count(block.shards)}
              </td>
              <td class="wrap" data-name="owner">
                {block.grant ? (
                  <a href={href(["worker", block.grant.worker_id])}>{block.grant.worker_id}</a>
                ) : (
                  <span class="quiet">none</span>
                )}
              </td>
              <td data-name="since">{block.moving ? "moving" : <Ago at={block.grant?.since} />}</td>
              <td data-name="heard">
                <Ago at={block.heardAt} />
              </td>
              <td data-name="expires">{block.grant && <Expiry at={block.expiresAt} />}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Expiry({ at }: { at: string | null }): JSX.Element {
  const { bucket } = useApp();
  const moment = seconds(at);
  return moment === null || moment <= bucket.time.now() ? <span class="s-failed">expired</span> : <Ago at={at} />;
}
