import { expect, test } from "vitest";
import vectors from "../../vectors/signing.json";
import { path, queryText, signed } from "./signing";

test.each(vectors)("signs as botocore does: $method $path", async (vector) => {
  const query = Object.entries(vector.query) as [string, string][];
  const url = new URL(`http://127.0.0.1:8333${path(vector.path)}`);
  const headers = await signed(
    {
      method: vector.method,
      url,
      query,
      headers: vector.headers as unknown as Record<string, string>,
      body: new TextEncoder().encode(vector.body),
    },
    { accessKeyId: "AKID", secretAccessKey: "secret", sessionToken: vector.token },
    "eu-west-1",
    new Date(vector.at),
  );
  expect(headers.authorization).toBe(vector.authorization);
});

test("a query goes into the address as it was signed", () => {
  expect(
    queryText([
      ["prefix", "a b/c"],
      ["list-type", "2"],
    ]),
  ).toBe("list-type=2&prefix=a%20b%2Fc");
});
