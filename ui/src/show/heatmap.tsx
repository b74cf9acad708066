/**
 * Partitions as squares: how fresh they are, or how large. Those of days stand in a calendar, where a gap shows. Each is a
 * link, and says in words what it is.
 */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatDuration } from "../core/duration";
import { seconds } from "../core/instant";
import type { Partition } from "../dispatcher/answers";
import { useApp } from "../shell/app";
import { href } from "../shell/router";
import { monthsOf } from "./months";
import { staleReasons } from "./stale";
import { bytes, plural } from "./text";

type By = "age" | "rows" | "bytes";

const LEVELS = 6;

interface Wanted {
  dataset: string;
  partitions: Partition[];
  chosen: string;
  complete: boolean; // Whether these are all: only then a gap is a gap.
}

export function Heatmap({ dataset, partitions, chosen, complete }: Wanted): JSX.Element {
  const { bucket } = useApp();
  const [by, setBy] = useState<By>("age");
  const now = bucket.time.now();
  const measure = (each: Partition): number => (by === "age" ? (seconds(each.committed_at) ?? 0) : (each[by] ?? 0));
  // By rank, not by value: one huge partition must not make all the others look alike.
  const ranks = new Map([...new Set(partitions.map(measure))].sort((a, b) => a - b).map((value, n) => [value, n]));
  const strength = (each: Partition): number =>
    ranks.size < 2 ? LEVELS : 1 + Math.round(((LEVELS - 1) * ranks.get(measure(each))!) / (ranks.size - 1));
  const said = (each: Partition): string =>
    [
      each.partition_key,
      each.rows !== null && plural(each.rows, "row"),
      bytes(each.bytes),
      `committed ${formatDuration(now - (seconds(each.committed_at) ?? now))} ago`,
      each.stale && ["stale", ...staleReasons(each)].join(": "),
    ]
      .filter(Boolean)
      .join(", ");
  const cell = (each: Partition): JSX.Element => (
    <a
      key={each.partition_key}
      class={each.stale ? "stale" : undefined}
      href={href(["dataset", dataset], { partition: each.partition_key })}
      style={{ background: shade(strength(each)) }}
      title={said(each)}
      aria-label={said(each)}
      {...(each.partition_key === chosen ? { "aria-current": "true" as const } : {})}
    />
  );
  const months = monthsOf(partitions.map((each) => each.partition_key));
  const byKey = new Map(partitions.map((each) => [each.partition_key, each]));
  return (
    <div style={{ display: "grid", gap: "10px" }}>
      <div class="head">
        <fieldset class="choices" style={{ border: 0, padding: 0, margin: 0 }}>
          <legend class="hidden-text">Shade by</legend>
          {(["age", "rows", "bytes"] as const).map((each) => (
            <button key={each} type="button" aria-pressed={by === each} onClick={() => setBy(each)}>
              {each}
            </button>
          ))}
        </fieldset>
        <Scale by={by} gaps={months !== null && complete} stale={partitions.some((each) => each.stale)} />
      </div>
      {months === null ? (
        <div class="heat">{partitions.map(cell)}</div>
      ) : (
        <div class="heat months">
          {months.map(({ month, days }) => (
            <>
              <span key={month} class="month">
                {month}
              </span>
              {days.map((day) => {
                const there = byKey.get(day.key);
                if (there) return cell(there);
                if (!day.within || !complete) return <i key={day.key} />;
                const text = `${day.key} is missing`;
                return (
                  <a
                    key={day.key}
                    class="missing"
                    href={href(["why"], { target: `${dataset}@${day.key}` })}
                    title={`${text}: why?`}
                  >
                    <span class="hidden-text">{text}: why?</span>
                  </a>
                );
              })}
            </>
          ))}
        </div>
      )}
    </div>
  );
}

function shade(strength: number): string {
  return `color-mix(in srgb, var(--accent) ${Math.round((100 * strength) / LEVELS)}%, var(--sunk))`;
}

function Scale({ by, gaps, stale }: { by: By; gaps: boolean; stale: boolean }): JSX.Element {
  return (
    <span class="scale">
      {by === "age" ? "older" : "less"}
      {Array.from({ length: LEVELS }, (_, n) => (
        <i key={n} style={{ background: shade(n + 1) }} />
      ))}
      {by === "age" ? "newer" : "more"}
      {gaps && (
        <>
          <i style={{ border: "1.5px dashed var(--line-strong)", marginLeft: "10px" }} /> missing
        </>
      )}
      {stale && (
        <>
          <i class="stale" style={{ marginLeft: "10px" }} /> stale
        </>
      )}
    </span>
  );
}
