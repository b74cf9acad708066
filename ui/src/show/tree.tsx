/** A JSON value as a tree that folds. Everything in it is text. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Exact } from "../core/document";

const OPEN_TO = 2;
const SHOWN_MAX = 100; // Of one list or object; the rest on request.

export function Tree({ value }: { value: unknown }): JSX.Element {
  return (
    <div class="tree">
      <Node value={value} depth={0} />
    </div>
  );
}

function Node({ name, value, depth }: { name?: string; value: unknown; depth: number }): JSX.Element {
  const [most, setMost] = useState(SHOWN_MAX);
  const [open, setOpen] = useState<boolean | null>(null); // null: nobody has touched it.
  const label = name === undefined ? null : <span class="name">{name}: </span>;
  const members = membersOf(value);
  if (members === null || members.length === 0)
    return (
      <div class="leaf">
        {label}
        <Leaf value={value} />
      </div>
    );
  const unfolded = open ?? (depth < OPEN_TO && members.length <= 40);
  const kind = Array.isArray(value) ? `[${members.length}]` : `{${members.length}}`;
  return (
    <details open={unfolded} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {label}
        <span class="quiet">{kind}</span>
      </summary>
      {/* What is folded is not drawn: there may be a million of it. */}
      {unfolded && (
        <ul>
          {members.slice(0, most).map(([key, each]) => (
            <li key={key}>
              <Node name={key} value={each} depth={depth + 1} />
            </li>
          ))}
          {members.length > most && (
            <li>
              <button type="button" class="plain" onClick={() => setMost(most + 1000)}>
                {members.length - most} more
              </button>
            </li>
          )}
        </ul>
      )}
    </details>
  );
}

function membersOf(value: unknown): [string, unknown][] | null {
  if (Array.isArray(value)) return value.map((each, n) => [String(n), each]);
  if (typeof value === "object" && value !== null && !(value instanceof Exact)) return Object.entries(value);
  return null;
}

function Leaf({ value }: { value: unknown }): JSX.Element {
  if (value instanceof Exact) return <span class="count">{value.text}</span>;
  if (typeof value === "string") return <span class="text">{JSON.stringify(value)}</span>;
  if (typeof value === "number") return <span class="count">{value}</span>;
  if (Array.isArray(value)) return <span class="quiet">[]</span>;
  if (typeof value === "object" && value !== null) return <span class="quiet">{"{}"}</span>;
  return <span class="word">{String(value)}</span>;
}
