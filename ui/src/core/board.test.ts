import { expect, test } from "vitest";
import vectors from "../../vectors/board.json";
import { withNotice, withOrders } from "./board";
import { micros } from "./instant";
import { readTask } from "./task";

test.each(vectors)("the page changes the board as the queue does", (vector) => {
  const { before, token, etag, hint, now, orders } = vector;
  const task = readTask(vector.task, "tasks/a");
  const posted = withNotice(before, task, hint, etag, micros(now)!, token);
  expect(posted && JSON.parse(posted)).toEqual(vector.posted && JSON.parse(vector.posted));
  const ordered = withOrders(before, orders, token);
  expect(ordered && JSON.parse(ordered)).toEqual(vector.ordered && JSON.parse(vector.ordered));
});

test("a board that nobody can read is left alone", () => {
  for (const text of ["", "{broken", "[]", '{"sequence":"x"}', '{"sequence":-1}', '{"notices":{}}', '{"orders":1}'])
    expect(withOrders(text, "o", "t")).toBeNull();
});
