/**
 * Jobs of a group, drawn as one node: a graph of hundreds of jobs stays one that can be read. Groups are those that jobs
 * declare; where none does, jobs whose names begin alike.
 */

import type { GraphEdge, GraphNode } from "./graph";

const SIZE_MIN = 3; // Fewer are as quickly read one by one.

/** What stands before the first underscore, where enough names have it. */
export function groupsOf(names: string[]): Map<string, string[]> {
  const members = new Map<string, string[]>();
  for (const name of names) {
    const prefix = name.split("_")[0]!;
    if (prefix !== name) members.set(prefix, [...(members.get(prefix) ?? []), name]);
  }
  return new Map([...members].filter(([, own]) => own.length >= SIZE_MIN));
}

/** The groups that jobs declare, by name, in the order of their first jobs. */
export function declaredGroups(nodes: { id: string; group?: string | null | undefined }[]): Map<string, string[]> {
  const members = new Map<string, string[]>();
  for (const { id, group } of nodes) if (group) members.set(group, [...(members.get(group) ?? []), id]);
  return members;
}

/** `open`: the group whose members are drawn one by one. `link`: the address that opens a group. */
export function drawGroups(
  nodes: GraphNode[],
  edges: GraphEdge[],
  open: string,
  link: (group: string) => string,
): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const declared = declaredGroups(nodes);
  const closed = declared.size > 0 ? declared : groupsOf(nodes.map((each) => each.id));
  closed.delete(open);
  const groupOf = new Map<string, string>();
  for (const [group, members] of closed) for (const member of members) groupOf.set(member, group);
  const idOf = (name: string): string => (groupOf.has(name) ? `group ${groupOf.get(name)}` : name);
  const drawn = nodes.filter((each) => !groupOf.has(each.id));
  for (const [group, members] of closed)
    drawn.push(
      merged(
        group,
        nodes.filter((each) => members.includes(each.id)),
        link(group),
      ),
    );
  const merging = new Map<string, GraphEdge>();
  for (const edge of edges) {
    const [from, to] = [idOf(edge.from), idOf(edge.to)];
    if (from === to) continue;
    const key = `${from}\n${to}`;
    merging.set(key, { from, to, live: Boolean(edge.live || merging.get(key)?.live) });
  }
  return { nodes: drawn, edges: [...merging.values()] };
}

function merged(group: string, members: GraphNode[], link: string): GraphNode {
  const counts: Record<string, number> = {};
  for (const each of members)
    for (const [status, n] of Object.entries(each.counts ?? {})) counts[status] = (counts[status] ?? 0) + n;
  const state = counts.failed ? "failed" : counts.running ? "running" : "";
  const said = (["running", "failed"] as const)
    .filter((status) => counts[status])
    .map((status) => `${counts[status]} ${status}`);
  return {
    id: `group ${group}`,
    title: members.some((each) => each.group === group) ? group : `${group}…`,
    lines: [members.length === 1 ? "1 job" : `${members.length} jobs`, said.join(", ") || "quiet"],
    href: link,
    counts,
    class: `group ${state}`,
  };
}
