/** A status as a shape, a word and a colour, so that it needs no colour vision. */

import type { JSX } from "preact";

const KIND: Record<string, string> = {
  pending: "pending",
  running: "running",
  completed: "completed",
  failed: "failed",
  cancelled: "cancelled",
  expired: "expired",
  archived: "archived",
  // Words of pipelines, workers and checks, by what they mean to who looks.
  active: "completed",
  ready: "pending",
  staged: "pending",
  current: "completed",
  retired: "archived",
  collected: "archived",
  rolled_back: "cancelled",
  abandoned: "cancelled",
  stale: "failed",
  paused: "expired",
  held: "expired",
  late: "expired",
  leaving: "cancelled",
  routed: "completed",
  consumed: "completed",
  merged: "completed",
  superseded: "archived",
  filtered: "archived",
  retried: "expired",
  released: "archived",
  rescheduled: "archived",
  timed_out: "failed",
  lost: "failed",
  passed: "completed",
  warned: "expired",
  there: "completed",
  under_way: "running",
  blocked: "failed",
  unknown: "archived",
  high: "failed",
  normal: "completed",
  backoff: "expired",
  enabled: "completed",
  disabled: "archived",
};

export function kindOf(status: string): string {
  return KIND[status] ?? "archived";
}

const SHAPES: Record<string, JSX.Element> = {
  pending: <circle cx="6" cy="6" r="4.4" fill="none" stroke="currentColor" stroke-width="1.8" />,
  running: <path d="M2.6 1.2 10.8 6 2.6 10.8Z" fill="currentColor" />,
  completed: (
    <path
      d="M1.6 6.4 4.8 9.6 10.6 2.8"
      fill="none"
      stroke="currentColor"
      stroke-width="2.2"
      stroke-linecap="round"
      stroke-linejoin="round"
    />
  ),
  failed: (
    <path d="M2.2 2.2 9.8 9.8M9.8 2.2 2.2 9.8" stroke="currentColor" stroke-width="2.4" stroke-linecap="round" />
  ),
  cancelled: (
    <g fill="none" stroke="currentColor" stroke-width="1.7">
      <circle cx="6" cy="6" r="4.6" />
      <path d="M2.8 9.2 9.2 2.8" />
    </g>
  ),
  expired: <path d="M6 1 11.4 10.8H.6Z" fill="currentColor" />,
  archived: (
    <rect x="1.6" y="1.6" width="8.8" height="8.8" rx="1.6" fill="none" stroke="currentColor" stroke-width="1.8" />
  ),
};

export function Shape({ status }: { status: string }): JSX.Element {
  return (
    <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" class={`s-${kindOf(status)}`}>
      {SHAPES[kindOf(status)]}
    </svg>
  );
}

export function Badge({ status, children }: { status: string; children?: preact.ComponentChildren }): JSX.Element {
  return (
    <span class={`badge s-${kindOf(status)}`}>
      <Shape status={status} />
      <span>{children ?? status.replaceAll("_", " ")}</span>
    </span>
  );
}

/** Counts side by side as one bar, with the numbers beside it in words. */
export function StatusBar({
  counts,
  tall = false,
  label,
}: {
  counts: Record<string, number>;
  tall?: boolean;
  label: string;
}): JSX.Element {
  const shown = Object.entries(counts).filter(([, count]) => count > 0);
  const text = shown.map(([status, count]) => `${count.toLocaleString("en")} ${status}`).join(", ") || "none";
  return (
    <div class={tall ? "bar tall" : "bar"} role="img" aria-label={`${label}: ${text}`} title={text}>
      {shown.map(([status, count]) => (
        <span key={status} class={`b-${kindOf(status)}`} style={{ flexGrow: count }} />
      ))}
    </div>
  );
}
