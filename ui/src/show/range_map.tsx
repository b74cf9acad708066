/**
 * Ranges of partitions over jobs, drawn on a canvas: however many there are, the document stays small. To the keyboard and
 * to screen readers it is a grid, of which only the cell that has the focus exists.
 */

import type { JSX, TargetedKeyboardEvent, TargetedPointerEvent } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { GridRanges } from "../dispatcher/answers";
import { href } from "../shell/router";
import { type Shares, type Spot, STATES, sayCell, sharesOf, stepped } from "./ranges";

const ROW = 22;
const SEEN = 4; // Pixels that anything failed or running has at least.
const COLOURS = { done: "--completed", running: "--running", waiting: "--pending", failed: "--failed" } as const;

interface Wanted {
  answer: GridRanges;
  at: Spot;
  onChoose: (spot: Spot) => void;
  onOpen: (spot: Spot) => void;
  onWiden: (() => void) | null;
}

export function RangeMap({ answer, at, onChoose, onOpen, onWiden }: Wanted): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [over, point] = useState<Spot | null>(null);
  const [rows, columns] = [answer.rows.length, answer.ranges.length];
  const shown = over ?? at;

  useEffect(() => {
    const element = canvas.current!;
    const redraw = (): void => draw(element, answer, shown);
    redraw();
    const resized = new ResizeObserver(redraw);
    resized.observe(element);
    const theme = new MutationObserver(redraw); // Colours of a canvas do not follow the theme by themselves.
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      resized.disconnect();
      theme.disconnect();
    };
  }, [answer, shown.row, shown.column]);

  const spotAt = (event: TargetedPointerEvent<HTMLCanvasElement>): Spot => {
    const box = event.currentTarget.getBoundingClientRect();
    const place = (offset: number, of: number, parts: number): number =>
      Math.min(parts - 1, Math.max(0, Math.floor((parts * offset) / Math.max(1, of))));
    return {
      row: place(event.clientY - box.top, box.height, rows),
      column: place(event.clientX - box.left, box.width, columns),
    };
  };
  const press = (event: TargetedKeyboardEvent<HTMLDivElement>): void => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const to = stepped(at, event.key, rows, columns);
    if (to !== null) {
      point(null);
      onChoose(to);
    } else if (event.key === "Enter") onOpen(at);
    else if (event.key === "Escape" && onWiden !== null) onWiden();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const id = `range-${at.row}-${at.column}`;
  return (
    <div class="ranges">
      <div class="ranges-jobs">
        {answer.rows.map((row) => (
          <a
            key={row.edition_id}
            href={href(["pipeline", answer.dag], { focus: row.job })}
            style={{ height: `${ROW}px` }}
          >
            {row.job}
          </a>
        ))}
      </div>
      <div
        class="ranges-map"
        role="grid"
        tabIndex={0}
        aria-label="Ranges of partitions over jobs"
        aria-rowcount={rows}
        aria-colcount={columns}
        aria-activedescendant={id}
        onKeyDown={press}
      >
        <canvas
          ref={canvas}
          style={{ height: `${ROW * rows}px` }}
          onPointerMove={(event) => event.pointerType === "mouse" && point(spotAt(event))}
          onPointerLeave={() => point(null)}
          onPointerUp={(event) => {
            const spot = spotAt(event);
            onChoose(spot);
            if (event.pointerType === "mouse") onOpen(spot); // A finger hides what it points to: it chooses first.
          }}
        />
        <div role="row" tabIndex={-1} aria-rowindex={at.row + 1} class="hidden-text">
          <span key={id} id={id} role="gridcell" tabIndex={-1} aria-colindex={at.column + 1} aria-selected="true">
            {sayCell(answer, at)}
          </span>
        </div>
      </div>
      <p class="ranges-read" aria-hidden="true">
        {sayCell(answer, shown)}
      </p>
    </div>
  );
}

function draw(element: HTMLCanvasElement, answer: GridRanges, shown: Spot): void {
  const pen = element.getContext("2d");
  if (pen === null) return;
  const [width, height, ratio] = [element.clientWidth, element.clientHeight, devicePixelRatio || 1];
  element.width = Math.round(width * ratio);
  element.height = Math.round(height * ratio);
  pen.scale(ratio, ratio);
  const css = getComputedStyle(document.documentElement);
  const colour = (name: string): string => css.getPropertyValue(name).trim();
  const colours = Object.fromEntries(STATES.map((state) => [state, colour(COLOURS[state])]));
  const sunk = colour("--sunk");
  const paper = colour("--paper");
  const columns = answer.ranges.length;
  const gap = width / columns > 5 ? 1 : 0;
  answer.rows.forEach((row, n) => {
    for (let column = 0; column < columns; column += 1) {
      const left = Math.round((width * column) / columns);
      const right = Math.round((width * (column + 1)) / columns) - gap;
      const [top, tall] = [ROW * n + 2, ROW - 4];
      pen.fillStyle = sunk;
      pen.fillRect(left, top, right - left, tall);
      fill(pen, sharesOf(answer, row, column), colours, paper, { left, top, wide: right - left, tall });
    }
  });
  pen.strokeStyle = colour("--ink");
  pen.lineWidth = 2;
  const left = (width * shown.column) / columns;
  pen.strokeRect(Math.max(1, left), ROW * shown.row + 1, Math.max(3, width / columns - gap), ROW - 2);
}

interface Box {
  left: number;
  top: number;
  wide: number;
  tall: number;
}

/** From the ground up: done, running, waiting, failed. Each has a look of its own beside its colour. */
function fill(
  pen: CanvasRenderingContext2D,
  shares: Shares,
  colours: Record<string, string>,
  paper: string,
  box: Box,
): void {
  let ground = box.top + box.tall;
  for (const state of STATES) {
    if (shares[state] <= 0) continue;
    const least = state === "done" ? 2 : SEEN;
    const high = Math.min(Math.max(least, Math.round(shares[state] * box.tall)), Math.max(least, ground - box.top));
    const top = Math.max(box.top, ground - high);
    pen.fillStyle = colours[state]!;
    pen.globalAlpha = state === "waiting" ? 0.45 : state === "done" ? 0.72 : 1; // As the squares of single keys.
    pen.fillRect(box.left, top, box.wide, high);
    pen.globalAlpha = 1;
    if (state === "running" || state === "failed") {
      // A line, or a cross where there is room.
      pen.strokeStyle = paper;
      pen.lineWidth = 1;
      pen.beginPath();
      if (state === "failed" && box.wide >= 7 && high >= 7) {
        const [x, y] = [box.left + box.wide / 2, top + high / 2];
        pen.moveTo(x - 2.5, y - 2.5);
        pen.lineTo(x + 2.5, y + 2.5);
        pen.moveTo(x + 2.5, y - 2.5);
        pen.lineTo(x - 2.5, y + 2.5);
      } else {
        pen.moveTo(box.left, top + 0.5);
        pen.lineTo(box.left + box.wide, top + 0.5);
      }
      pen.stroke();
    }
    ground = top;
  }
}
