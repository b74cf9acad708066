import { expect, test } from "vitest";
import { ancestry } from "./ancestry";
import type { Lineage, LineageEdge } from "./answers";

const edge = (dataset: string, partition_key: string | null, task_id: string): LineageEdge => ({
  depth: 1,
  dataset,
  partition_key,
  cursor_after: null,
  cursor_upto: null,
  revision: 1,
  mode: partition_key === null ? "whole" : "partition",
  as_of: partition_key === null ? 7 : null,
  pieces: partition_key === null ? 3 : null,
  task_id,
});

const READS: Record<string, string[]> = {
  report: ["totals", "rejected"],
  totals: ["clean"],
  rejected: ["clean"],
  clean: ["orders"],
  orders: [],
};

/** The dispatcher's answer for a diamond, with how often it was asked. */
function diamond(): { asked: string[]; get: <T>(path: string[], query?: Record<string, unknown>) => Promise<T> } {
  const asked: string[] = [];
  return {
    asked,
    get: async <T>(path: string[], query?: Record<string, unknown>) => {
      const name = path[1]!;
      asked.push(name);
      const key = String(query?.partition_key);
      const readers = Object.keys(READS).filter((each) => READS[each]!.includes(name));
      const lineage: Lineage = {
        dataset: name,
        partition_key: key,
        revision: 1,
        task_id: `made-${name}`,
        upstream: READS[name]!.map((each) => edge(each, key, `made-${each}`)),
        downstream: readers.map((each) => edge(each, key, `made-${each}`)),
        more: false,
      };
      return lineage as T;
    },
  };
}

test("a diamond is drawn as one, with an edge for each reading and none made up", async () => {
  const dispatcher = diamond();
  const found = await ancestry(dispatcher, "report", "d1", 5, new Map());
  const edges = found.edges.map(({ from, to }) => `${from.split("@")[0]}>${to.split("@")[0]}`).sort();
  expect(edges).toEqual(["clean>rejected", "clean>totals", "orders>clean", "rejected>report", "totals>report"]);
  expect(found.more).toBe(false);
});

test("looking again asks for the piece in question alone", async () => {
  const dispatcher = diamond();
  const known = new Map();
  await ancestry(dispatcher, "report", "d1", 5, known);
  dispatcher.asked.length = 0;
  await ancestry(dispatcher, "report", "d1", 5, known);
  expect(dispatcher.asked).toEqual(["report"]);
});

test("one step asks once, and shows both sides", async () => {
  const dispatcher = diamond();
  const found = await ancestry(dispatcher, "clean", "d1", 1, new Map());
  expect(dispatcher.asked).toEqual(["clean"]);
  expect([...found.pieces.keys()].sort()).toEqual(["clean@d1", "orders@d1", "rejected@d1", "totals@d1"]);
});

test("each piece has the run that made it, the one in question too", async () => {
  const found = await ancestry(diamond(), "clean", "d1", 2, new Map());
  for (const piece of found.pieces.values()) expect(piece.taskId).toBe(`made-${piece.dataset}`);
});

test("an input that was read whole says as of which revision, and is another piece as of another", async () => {
  const asOf = (as_of: number): LineageEdge => ({ ...edge("rates", null, `made-${as_of}`), as_of });
  const get = async <T>(path: string[]): Promise<T> =>
    ({
      dataset: path[1]!,
      partition_key: "d1",
      revision: 1,
      task_id: "t",
      upstream: path[1] === "a" ? [asOf(7), edge("b", "d1", "t")] : [asOf(9)],
      downstream: [],
      more: false,
    }) as T;
  const found = await ancestry({ get }, "a", "d1", 2, new Map());
  const rates = [...found.pieces.values()].filter((piece) => piece.dataset === "rates");
  expect(rates.map(({ range, taskId }) => [range, taskId])).toEqual([
    ["whole as of revision 7, 3 pieces", "made-7"],
    ["whole as of revision 9, 3 pieces", "made-9"],
  ]);
});
