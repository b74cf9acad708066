import { expect, test } from "vitest";
import { namesInOrder } from "./order";

test("each job comes after those that it reads", () => {
  const jobs = [
    { name: "alert", reads: ["daily[1]"] },
    { name: "daily", reads: ["orders", "outside"] },
    { name: "orders", reads: [] },
  ];
  expect(namesInOrder(jobs)).toEqual(["orders", "daily", "alert"]);
});

test("pipelines that read each other in a circle end, too", () => {
  const jobs = [
    { name: "a", reads: ["b"] },
    { name: "b", reads: ["a"] },
  ];
  expect(namesInOrder(jobs)).toHaveLength(2);
});
