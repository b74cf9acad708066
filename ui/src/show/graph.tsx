/** A directed graph as SVG, laid out by dagre. Nodes are links; the same is said in words beside it. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Problem } from "../s3/problem";
import { kindOf } from "./badge";
import type { Place } from "./layout";
import { Failure, Loading } from "./states";

export interface GraphNode {
  id: string;
  group?: string | null;
  title: string;
  lines: string[]; // Below the title.
  href: string;
  class?: string; // failed, running, external, here
  counts?: Record<string, number>; // Drawn as a bar at the bottom.
}

export interface GraphEdge {
  from: string;
  to: string;
  live?: boolean;
}

const WIDTH_MIN = 130;
const WIDTH_MAX = 250;
const SHRUNK_MIN = 0.65; // What does not fit even so is pushed sideways: smaller, nobody could read it.
const PAD = 11;
const LINE = 16;

export function Graph({
  nodes,
  edges,
  label,
}: {
  nodes: GraphNode[];
  edges: GraphEdge[];
  label: string;
}): JSX.Element {
  const layOut = useLayOut();
  const [zoom, setZoom] = useState<number | null>(null); // Null: as large as there is room.
  // Live numbers change all the time; only another shape needs another layout.
  const shape = JSON.stringify([
    nodes.map((node) => [node.id, node.title, node.lines.length, widthOf(node)]),
    edges.map((edge) => [edge.from, edge.to]),
  ]);
  // `shape` stands for what the layout depends on.
  const layout = useMemo(
    () => (typeof layOut === "function" ? layOut(nodes.map(sized), edges) : null),
    [layOut, shape],
  );
  if (layOut instanceof Problem) return <Failure problem={layOut} />;
  if (layout === null) return <Loading what="the graph" />;
  const live = new Map(edges.map((edge) => [`${edge.from}\n${edge.to}`, edge.live]));
  const size =
    zoom === null
      ? { minWidth: `${layout.width * SHRUNK_MIN}px` }
      : { width: `${layout.width * zoom}px`, maxWidth: "none" };
  return (
    <>
      {nodes.length >= ZOOMED_FROM && <Zoom zoom={zoom} set={setZoom} />}
      <div
        class="graph"
        tabIndex={0}
        role="group"
        aria-label={label}
        onWheel={(event) => {
          if (!event.ctrlKey) return; // As a map: the wheel alone scrolls.
          event.preventDefault();
          setZoom(clamp((zoom ?? 1) * (event.deltaY < 0 ? STEP : 1 / STEP)));
        }}
      >
        <svg
          width={layout.width}
          height={layout.height}
          viewBox={`0 0 ${layout.width} ${layout.height}`}
          style={size}
          role="group"
          aria-label={label}
        >
          <defs>
            <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0 8 4 0 8Z" class="arrow" />
            </marker>
          </defs>
          {layout.edges.map((edge) => (
            <path
              key={`${edge.from}>${edge.to}`}
              d={curve(edge.points)}
              class={live.get(`${edge.from}\n${edge.to}`) ? "edge live" : "edge"}
              marker-end="url(#arrow)"
            />
          ))}
          {nodes.map((node) => (
            <NodeShape key={node.id} node={node} place={layout.places.get(node.id)!} />
          ))}
        </svg>
      </div>
    </>
  );
}

const ZOOMED_FROM = 12; // Nodes; fewer are seen as they are.
const STEP = 1.25;

function clamp(zoom: number): number {
  return Math.min(3, Math.max(0.2, zoom));
}

function Zoom({ zoom, set }: { zoom: number | null; set: (zoom: number | null) => void }): JSX.Element {
  return (
    <div class="graph-tools">
      <button type="button" aria-label="Smaller" onClick={() => set(clamp((zoom ?? 1) / STEP))}>
        −
      </button>
      <button type="button" aria-label="Larger" onClick={() => set(clamp((zoom ?? 1) * STEP))}>
        +
      </button>
      <button type="button" aria-pressed={zoom === null} onClick={() => set(null)}>
        fit
      </button>
    </div>
  );
}

type LayOut = typeof import("./layout").layOut;

/** How to lay out. That is a fifth of all code, and most pages have no graph: it is loaded with the first one. */
function useLayOut(): LayOut | Problem | null {
  const [found, setFound] = useState<LayOut | Problem | null>(null);
  useEffect(() => {
    import("./layout").then(
      ({ layOut }) => setFound(() => layOut),
      () => setFound(new Problem("offline", "The part of this page that draws graphs cannot be loaded.", AGAIN)),
    );
  }, []);
  return found;
}

const AGAIN = "Reload the page: there may be a newer one.";

function NodeShape({ node, place }: { node: GraphNode; place: Place }): JSX.Element {
  const [x, y] = [place.x - place.width / 2, place.y - place.height / 2];
  const said = [
    node.title,
    ...node.lines,
    ...Object.entries(node.counts ?? {}).map(([status, n]) => `${n} ${status}`),
  ].join(", ");
  const room = Math.floor((place.width - 2 * PAD) / 6.4);
  return (
    <a href={node.href}>
      <g class={`node ${node.class ?? ""}`} transform={`translate(${x} ${y})`}>
        <title>{said}</title>
        <rect class="box" width={place.width} height={place.height} rx="7" />
        <text x={PAD} y={21}>
          {cut(node.title, room - 2)}
        </text>
        {node.lines.map((line, n) => (
          <text key={line} class="small" x={PAD} y={21 + (n + 1) * LINE}>
            {cut(line, room)}
          </text>
        ))}
        <Counts counts={node.counts ?? {}} width={place.width - 2 * PAD} y={place.height - 11} />
      </g>
    </a>
  );
}

function Counts({
  counts,
  width,
  y,
}: {
  counts: Record<string, number>;
  width: number;
  y: number;
}): JSX.Element | null {
  const shown = Object.entries(counts).filter(([, n]) => n > 0);
  const total = shown.reduce((sum, [, n]) => sum + n, 0);
  if (!total) return null;
  let x = PAD;
  return (
    <g>
      {shown.map(([status, n]) => {
        const share = Math.max(3, (width * n) / total);
        const at = x;
        x += share;
        return (
          <path
            key={status}
            d={`M${at} ${y}h${Math.max(1, Math.min(share, PAD + width - at) - 1)}v4h-${Math.max(1, Math.min(share, PAD + width - at) - 1)}z`}
            class={`g-${kindOf(status)}`}
          />
        );
      })}
    </g>
  );
}

function widthOf(node: GraphNode): number {
  const longest = Math.max(node.title.length * 1.12, ...node.lines.map((line) => line.length));
  return Math.round(Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, longest * 6.5 + 2 * PAD)));
}

function sized(node: GraphNode): { id: string; width: number; height: number } {
  return { id: node.id, width: widthOf(node), height: 36 + node.lines.length * LINE + (node.counts ? 8 : 0) };
}

function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x} ${first.y}`;
  for (let n = 0; n < rest.length - 1; n += 1) {
    const [here, next] = [rest[n]!, rest[n + 1]!];
    const end = n === rest.length - 2 ? next : { x: (here.x + next.x) / 2, y: (here.y + next.y) / 2 };
    path += `Q${here.x} ${here.y} ${end.x} ${end.y}`;
  }
  return rest.length === 1 ? `${path}L${rest[0]!.x} ${rest[0]!.y}` : path;
}

function cut(text: string, room: number): string {
  return text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text;
}
