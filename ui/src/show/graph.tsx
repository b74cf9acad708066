/** A directed graph as SVG, laid out by dagre. Nodes are links; the same is said in words beside it. */

import dagre from "@dagrejs/dagre";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { kindOf } from "./badge";

export interface GraphNode {
  id: string;
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
  // Live numbers change all the time; only another shape needs another layout.
  const shape = JSON.stringify([
    nodes.map((node) => [node.id, node.title, node.lines.length, widthOf(node)]),
    edges.map((edge) => [edge.from, edge.to]),
  ]);
  // `shape` stands for what the layout depends on.
  const layout = useMemo(() => laidOut(nodes, edges), [shape]);
  const live = new Map(edges.map((edge) => [`${edge.from}\n${edge.to}`, edge.live]));
  return (
    <div class="graph" tabIndex={0} role="group" aria-label={label}>
      <svg
        width={layout.width}
        height={layout.height}
        viewBox={`0 0 ${layout.width} ${layout.height}`}
        style={{ minWidth: `${layout.width * SHRUNK_MIN}px` }}
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
  );
}

interface Place {
  x: number;
  y: number;
  width: number;
  height: number;
}

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

function laidOut(nodes: GraphNode[], edges: GraphEdge[]) {
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({
    rankdir: nodes.length > 1 && innerWidth < 760 ? "TB" : "LR",
    nodesep: 22,
    ranksep: 52,
    marginx: 6,
    marginy: 6,
  });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes)
    graph.setNode(node.id, { width: widthOf(node), height: 36 + node.lines.length * LINE + (node.counts ? 8 : 0) });
  for (const { from, to } of edges) if (graph.hasNode(from) && graph.hasNode(to)) graph.setEdge(from, to);
  dagre.layout(graph);
  const size = graph.graph() as { width?: number; height?: number };
  return {
    width: Math.ceil(size.width ?? 0) || 10,
    height: Math.ceil(size.height ?? 0) || 10,
    places: new Map(graph.nodes().map((id) => [id, graph.node(id) as unknown as Place])),
    edges: graph.edges().map((edge) => ({
      from: edge.v,
      to: edge.w,
      points: (graph.edge(edge) as { points: { x: number; y: number }[] }).points,
    })),
  };
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
