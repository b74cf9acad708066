/** A small chart of bars that can be read bar by bar: with the pointer, the arrow keys, and aloud. */

import type { JSX, TargetedKeyboardEvent, TargetedPointerEvent } from "preact";
import { barAt, moved, type Part, pathsOf } from "./bars";

interface Wanted {
  title: string;
  parts: Part[];
  labels: string[]; // Of each bar, what it says in words.
  values: string[]; // The same, short, beside the title.
  at: number; // The chosen bar.
  onChoose: (at: number) => void;
  onOpen?: (at: number) => void;
  table: string; // The id of the table with the same figures.
}

export function BarChart({ title, parts, labels, values, at, onChoose, onOpen, table }: Wanted): JSX.Element {
  const bars = labels.length;
  const follow = (event: TargetedPointerEvent<SVGSVGElement>): void => {
    const box = event.currentTarget.getBoundingClientRect();
    onChoose(barAt((event.clientX - box.left) / Math.max(1, box.width), bars));
  };
  const press = (event: TargetedKeyboardEvent<HTMLDivElement>): void => {
    const to = moved(at, event.key, bars);
    if (to !== null) onChoose(to);
    else if (event.key === "Enter" && onOpen) onOpen(at);
    else return;
    event.preventDefault();
  };
  return (
    <figure class="bars">
      <figcaption>
        <span>{title}</span> <b class="number">{values[at]}</b>
      </figcaption>
      <div
        role="slider"
        tabIndex={0}
        aria-label={title}
        aria-valuemin={1}
        aria-valuemax={bars}
        aria-valuenow={at + 1}
        aria-valuetext={labels[at]}
        aria-details={table}
        onKeyDown={press}
      >
        <svg
          viewBox="0 0 100 100"
          preserveAspectRatio="none"
          aria-hidden="true"
          style={{ maxWidth: `${28 * bars}px` }}
          onPointerMove={follow}
          onPointerDown={follow}
          onDblClick={() => onOpen?.(at)}
        >
          <rect class="chosen" x={(100 * at) / bars} y="0" width={100 / bars} height="100" />
          {pathsOf(parts, bars).map((path, n) => (
            <path key={parts[n]!.name} d={path} style={{ fill: `var(${parts[n]!.colour})` }} />
          ))}
          <rect class="frame" x={(100 * at) / bars} y="0" width={100 / bars} height="100" />
        </svg>
      </div>
    </figure>
  );
}
