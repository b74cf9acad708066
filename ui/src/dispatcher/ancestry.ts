/**
 * A partition's lineage as a graph. The dispatcher tells how far away a piece is, but not through which other one; so each
 * piece is asked for its own neighbours, which never change once it is committed.
 */

import type { Lineage, LineageEdge } from "./answers";
import type { Dispatcher } from "./client";

export interface Piece {
  id: string;
  dataset: string;
  partition: string | null;
  range: string; // The partition, or which cursors.
  taskId: string; // Of the run that made it; empty for what was committed by none that is known.
}

export interface Ancestry {
  here: string;
  pieces: Map<string, Piece>;
  edges: { from: string; to: string }[];
  more: boolean;
}

const PIECES_MAX = 60;
const ASKED_MAX = 24; // Requests for one graph.

type Known = Map<string, Lineage>;

/** `known` keeps what was answered for other pieces; the one in question is asked for every time. */
export async function ancestry(
  dispatcher: Pick<Dispatcher, "get">,
  dataset: string,
  partition: string,
  depth: number,
  known: Known,
): Promise<Ancestry> {
  const ask = (name: string, key: string): Promise<Lineage> =>
    dispatcher.get<Lineage>(["datasets", name, "lineage"], { partition_key: key, depth: 1 });
  const root = await ask(dataset, partition);
  const here = idOf(root.dataset, partition);
  const found: Ancestry = {
    here,
    pieces: new Map([
      [here, { id: here, dataset: root.dataset, partition, range: partition, taskId: root.task_id }],
    ]),
    edges: [],
    more: root.more,
  };
  let asked = 0;
  for (const up of [true, false]) {
    let level: [string, Lineage][] = [[here, root]];
    for (let n = 1; n <= depth && level.length; n += 1) {
      const next: [string, Lineage][] = [];
      for (const [child, lineage] of level)
        for (const edge of up ? lineage.upstream : lineage.downstream) {
          const piece = pieceOf(edge);
          const fresh = !found.pieces.has(piece.id);
          if (fresh && found.pieces.size >= PIECES_MAX) {
            found.more = true;
            continue;
          }
          found.pieces.set(piece.id, found.pieces.get(piece.id) ?? piece);
          join(found, up ? piece.id : child, up ? child : piece.id);
          if (!fresh || n === depth || piece.partition === null) continue;
          let answer = known.get(piece.id);
          if (!answer) {
            if (asked >= ASKED_MAX) {
              found.more = true;
              continue;
            }
            asked += 1;
            answer = await ask(piece.dataset, piece.partition);
            known.set(piece.id, answer);
          }
          next.push([piece.id, answer]);
        }
      level = next;
    }
  }
  return found;
}

function join(found: Ancestry, from: string, to: string): void {
  if (from !== to && !found.edges.some((edge) => edge.from === from && edge.to === to))
    found.edges.push({ from, to });
}

function pieceOf(edge: LineageEdge): Piece {
  const range = rangeOf(edge);
  return {
    id: idOf(edge.dataset, range),
    dataset: edge.dataset,
    partition: edge.partition_key,
    range,
    taskId: edge.task_id,
  };
}

function rangeOf(edge: LineageEdge): string {
  if (edge.partition_key !== null) return edge.partition_key;
  if (edge.cursor_upto !== null) return `cursor ${edge.cursor_after ?? 0}–${edge.cursor_upto}`;
  const pieces = edge.pieces === null ? "" : `, ${edge.pieces === 1 ? "1 piece" : `${edge.pieces} pieces`}`;
  return `whole as of revision ${edge.as_of ?? 0}${pieces}`;
}

function idOf(dataset: string, range: string): string {
  return `${dataset}@${range}`;
}
