/** Where the nodes of a graph go, by dagre. */

import dagre from "@dagrejs/dagre";

export interface Place {
  x: number; // Of the middle.
  y: number;
  width: number;
  height: number;
}

export interface LaidOut {
  width: number;
  height: number;
  places: Map<string, Place>;
  edges: { from: string; to: string; points: { x: number; y: number }[] }[];
}

/** From left to right or, on a phone, from top to bottom. */
export function layOut(
  nodes: { id: string; width: number; height: number }[],
  edges: { from: string; to: string }[],
): LaidOut {
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({
    rankdir: nodes.length > 1 && innerWidth < 760 ? "TB" : "LR",
    nodesep: 22,
    ranksep: 52,
    marginx: 6,
    marginy: 6,
  });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { id, width, height } of nodes) graph.setNode(id, { width, height });
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
