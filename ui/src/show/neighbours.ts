/** The part of a graph that is near one node: so many steps against and along the edges. */

export interface Edge {
  from: string;
  to: string;
}

export function neighbours<N extends { id: string }, E extends Edge>(
  nodes: N[],
  edges: E[],
  focus: string,
  steps: number,
): { nodes: N[]; edges: E[] } {
  const near = new Set([
    ...reach(edges, focus, steps, (edge) => [edge.from, edge.to]),
    ...reach(edges, focus, steps, (edge) => [edge.to, edge.from]),
  ]);
  return {
    nodes: nodes.filter((each) => near.has(each.id)),
    edges: edges.filter((each) => near.has(each.from) && near.has(each.to)),
  };
}

/** What is reached in one direction. Upstream of downstream is not near: it would soon be everything. */
function reach<E>(edges: E[], focus: string, steps: number, ends: (edge: E) => [string, string]): Set<string> {
  const next = new Map<string, string[]>();
  for (const edge of edges) {
    const [from, to] = ends(edge);
    next.set(from, [...(next.get(from) ?? []), to]);
  }
  const reached = new Set([focus]);
  let edge = [focus];
  for (let n = 0; n < steps && edge.length; n += 1) {
    edge = edge.flatMap((each) => next.get(each) ?? []).filter((each) => !reached.has(each));
    for (const each of edge) reached.add(each);
  }
  return reached;
}
