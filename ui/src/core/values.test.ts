import { describe, expect, test } from "vitest";
import { diff } from "./diff";
import { Exact, members, NotAnObject, parseExact, patched } from "./document";
import { formatDuration, formatSpan, parseDuration } from "./duration";
import { grouped, signatureOf } from "./errors";
import { iso, micros } from "./instant";

describe("moments", () => {
  test.each(["2026-03-01T09:00:00.123456Z", "2026-03-01T09:00:00Z", "1999-12-31T23:59:59.000001Z"])(
    "%s survives",
    (text) => {
      expect(iso(micros(text)!)).toBe(text);
    },
  );
  test("offsets count, and a time without one is none", () => {
    expect(micros("2026-03-01T10:00:00+01:00")).toBe(micros("2026-03-01T09:00:00Z"));
    expect(micros("2026-03-01T10:00:00")).toBeNull();
    expect(micros("soon")).toBeNull();
  });
});

describe("durations", () => {
  test.each([
    ["90", 90],
    ["1h30m", 5400],
    ["2d", 172_800],
    ["1.5h", 5400],
    ["250ms", 0.25],
  ] as const)("%s", (text, s) => {
    expect(parseDuration(text)).toBe(s);
  });
  test.each(["", "h", "5x", "-3s", "1h junk"])("%j is none", (text) => expect(parseDuration(text)).toBeNull());
  test("two units are enough", () => {
    expect(formatDuration(3 * 86_400 + 4 * 3600 + 59)).toBe("3d 4h");
    expect(formatDuration(0.2)).toBe("0s");
    expect(formatSpan(0.0421)).toBe("42 ms");
    expect(formatSpan(1.44)).toBe("1.4 s");
  });
});

describe("documents", () => {
  test("what is not changed is given back to the letter", () => {
    const text = '{"a": 1.0 ,"b":{"x":[1,"]}"]},"big":12345678901234567890,"s":"\\u00e9,\\"","n":null}';
    expect(Object.fromEntries(members(text))).toEqual({
      a: "1.0",
      b: '{"x":[1,"]}"]}',
      big: "12345678901234567890",
      s: '"\\u00e9,\\""',
      n: "null",
    });
    expect(patched(text, { n: 2, new: "x" })).toBe(
      '{"a":1.0,"b":{"x":[1,"]}"]},"big":12345678901234567890,"s":"\\u00e9,\\"","n":2,"new":"x"}',
    );
  });
  test.each(["[]", '{"a"}', '{"a":1', '"x"', ""])("%j is no object", (text) =>
    expect(() => members(text)).toThrow(NotAnObject),
  );
  test("numbers are shown as they were written", () => {
    const value = parseExact('{"a":[1,12345678901234567890]}') as { a: unknown[] };
    expect(value.a[0]).toBe(1);
    // Older engines do not tell how a number was written; then it is a number.
    const last = value.a[1];
    expect(last instanceof Exact ? last.text : typeof last).toBe(
      last instanceof Exact ? "12345678901234567890" : "number",
    );
  });
});

describe("differences", () => {
  test("are told place by place", () => {
    expect(diff({ a: 1, b: [1, 2], c: { d: "x" } }, { a: 1, b: [1, 3, 4], c: { e: "x" } })).toEqual([
      { path: "b[1]", before: 2, after: 3 },
      { path: "b[2]", before: undefined, after: 4 },
      { path: "c.d", before: "x", after: undefined },
      { path: "c.e", before: undefined, after: "x" },
    ]);
  });
  test("there are none between equals, and one between kinds", () => {
    expect(diff({ a: [{}] }, { a: [{}] })).toEqual([]);
    expect(diff({ a: [] }, { a: {} })).toEqual([{ path: "a", before: [], after: {} }]);
  });
});

describe("errors", () => {
  test("that differ in ids, numbers and quoted values are one", () => {
    expect(signatureOf("KeyError: 'ada' in order 17")).toBe(signatureOf("KeyError: 'bob' in order 8"));
    expect(signatureOf("lease a3b1c2d4-0000-4000-8000-00000000000f lost")).toBe("lease … lost");
    expect(signatureOf("ValueError: bad face")).toBe("ValueError: bad face");
    expect(signatureOf(null)).toBe("no error was recorded");
  });
  test("are grouped by type, too, the largest first and the last task first", () => {
    const failed = (id: string, task_type: string, last_error: string, updated_at: string) => ({
      id,
      task_type,
      last_error,
      updated_at,
    });
    const groups = grouped([
      failed("1", "a", "E: 1", "2026-01-01"),
      failed("2", "b", "E: 1", "2026-01-01"),
      failed("3", "b", "E: 2", "2026-01-02"),
    ]);
    expect(groups.map((group) => [group.taskType, group.tasks.map((task) => task.id), group.example])).toEqual([
      ["b", ["3", "2"], "E: 2"],
      ["a", ["1"], "E: 1"],
    ]);
  });
});
