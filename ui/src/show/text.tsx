/** Moments, ids, numbers and sizes as they are shown. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatDuration } from "../core/duration";
import { seconds } from "../core/instant";
import { useApp } from "../shell/app";
import { href } from "../shell/router";

/** "3m 2s ago", or "in 40s"; the exact moment on hovering. By the store's clock, like all times here. */
export function Ago({ at, bare = false }: { at: string | null | undefined; bare?: boolean }): JSX.Element | null {
  const { bucket } = useApp();
  const moment = seconds(at);
  if (moment === null) return null;
  const past = bucket.time.now() - moment;
  const text = formatDuration(Math.abs(past));
  const said = bare ? text : past >= -0.5 ? `${text} ago` : `in ${text}`;
  return (
    <time dateTime={at!} title={exact(at!)} class="nowrap">
      {said}
    </time>
  );
}

export function At({ at }: { at: string | null | undefined }): JSX.Element | null {
  if (!at) return null;
  return (
    <time dateTime={at} title={at} class="nowrap">
      {exact(at)}
    </time>
  );
}

/** In the reader's own time zone, with a second's precision. */
export function exact(at: string): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return at;
  const pad = (n: number): string => String(n).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export function count(n: number): string {
  return n.toLocaleString("en");
}

export function bytes(n: number | null): string {
  if (n === null) return "";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let [value, unit] = [n, 0];
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function dollars(n: number): string {
  if (n === 0) return "$0";
  return n < 0.01 ? `$${n.toPrecision(2)}` : `$${n.toFixed(2)}`;
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function TaskLink({ id }: { id: string }): JSX.Element {
  return (
    <a class="mono nowrap" href={href(["task", id])} title={id}>
      {id.slice(0, 13)}…
    </a>
  );
}

export function RunLink({ id }: { id: string }): JSX.Element {
  return (
    <a class="mono nowrap" href={href(["run", id])} title={id}>
      {id.slice(0, 13)}…
    </a>
  );
}

export function Copy({ text, what }: { text: string; what: string }): JSX.Element {
  const [done, setDone] = useState(false);
  const copy = (): void => {
    void navigator.clipboard?.writeText(text).then(() => {
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    });
  };
  return (
    <button type="button" class="plain" onClick={copy} aria-label={`Copy ${what}`}>
      {done ? "copied" : "copy"}
    </button>
  );
}
