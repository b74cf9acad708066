import { expect, test } from "vitest";
import { typeText } from "./column_type";

test("nested types are written as in SQL", () => {
  expect(["long", "integer", "decimal(10,2)"].map(typeText)).toEqual(["bigint", "int", "decimal(10,2)"]);
  expect(typeText({ type: "array", elementType: "string", containsNull: true })).toBe("array<string>");
  const point = {
    type: "struct",
    fields: [
      { name: "x", type: "double" },
      { name: "tags", type: { type: "array", elementType: "string" } },
    ],
  };
  expect(typeText({ type: "map", keyType: "string", valueType: point })).toBe(
    "map<string, struct<x: double, tags: array<string>>>",
  );
  expect(typeText(null)).toBe("");
});
