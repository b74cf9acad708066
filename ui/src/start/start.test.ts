// @vitest-environment happy-dom

import { afterEach, describe, expect, test } from "vitest";
import { StoreTime } from "../s3/storetime";
import { checked } from "./config";
import { readCredentials, takeFromAddress } from "./credentials";

const encoded = (value: unknown): string =>
  btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value))))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replace(/=+$/, "");

const GIVEN = {
  access_key_id: "AK",
  secret_access_key: "ß~?ÿ",
  session_token: null,
  expires_at: "2026-03-01T09:00:00Z",
  dispatcher_token: "d",
  may_act: true,
};

describe("credentials", () => {
  test("are read as the command prints them, also out of a whole link", () => {
    for (const text of [encoded(GIVEN), ` ${encoded(GIVEN)}\n`, `http://127.0.0.1:1/#c=${encoded(GIVEN)}`])
      expect(readCredentials(text)).toEqual({
        accessKeyId: "AK",
        secretAccessKey: "ß~?ÿ",
        sessionToken: null,
        expiresAt: 1772355600,
        dispatcherToken: "d",
        mayAct: true,
      });
  });
  test.each(["", "!!", encoded({}), encoded({ ...GIVEN, expires_at: "soon" }), encoded(null)])(
    "%j are none",
    (text) => expect(() => readCredentials(text)).toThrow(),
  );
  test("may act only if they say so", () =>
    expect(readCredentials(encoded({ ...GIVEN, may_act: "yes" })).mayAct).toBe(false));
});

describe("the address", () => {
  afterEach(() => history.replaceState(null, "", "#/"));
  test("loses the credentials, and keeps where one wanted to go", () => {
    history.replaceState(null, "", "#c=abc_-&/tasks?status=failed");
    expect(takeFromAddress()).toBe("abc_-");
    expect(location.hash).toBe("#/tasks?status=failed");
  });
  test("without credentials stays as it is", () => {
    history.replaceState(null, "", "#/tasks");
    expect(takeFromAddress()).toBeNull();
    expect(location.hash).toBe("#/tasks");
  });
});

describe("the configuration", () => {
  test("an empty endpoint is this origin's gateway, and a prefix ends with a slash", () => {
    const config = checked(
      { endpoint: "", bucket: "b", prefix: "/team/a/", dispatcher: null },
      "http://127.0.0.1:8480",
    );
    expect([config.endpoint, config.prefix, config.dispatcher]).toEqual([
      "http://127.0.0.1:8480/s3",
      "team/a/",
      null,
    ]);
  });
  test("without a bucket says what to do", () =>
    expect(() => checked({ endpoint: "" }, "http://x")).toThrow("no bucket"));
});

describe("the store's clock", () => {
  test("is known to a fraction of a second after a few replies, whatever our own says", () => {
    let mono = 1000;
    const time = new StoreTime(() => mono);
    const truth = (): number => mono + 5_000_000.25;
    for (let n = 0; n < 40; n += 1) {
      mono += 0.93;
      const sent = mono;
      mono += 0.02;
      time.observe(sent, new Date(Math.floor(truth()) * 1000).toUTCString());
    }
    expect(Math.abs(time.now() - truth())).toBeLessThan(0.1);
  });
  test("follows a clock that was set", () => {
    let mono = 0;
    const time = new StoreTime(() => mono);
    time.observe(0, new Date(1_000_000).toUTCString());
    mono = 1;
    time.observe(1, new Date(9_000_000).toUTCString());
    expect(Math.abs(time.now() - 9_000)).toBeLessThan(2);
  });
});
