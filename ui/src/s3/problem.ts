/** Everything that can go wrong, in words: what happened, and what to do about it. */

export type Kind = "credentials" | "forbidden" | "missing" | "moved" | "busy" | "offline" | "wrong";

export class Problem extends Error {
  constructor(
    readonly kind: Kind,
    message: string,
    readonly todo: string = "",
  ) {
    super(message);
  }
}

export function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem("wrong", error instanceof Error ? error.message : String(error));
}

const CREDENTIALS =
  "Run `qo ui credentials` and paste its output; for a page of `qo ui` or `qo up`, open the printed link.";

/** What an error code of S3 means for who looks at this page. */
export function fromS3(status: number, code: string, message: string, what: string): Problem {
  switch (code) {
    case "ExpiredToken":
    case "TokenRefreshRequired":
      return new Problem("credentials", "The credentials of this page have expired.", CREDENTIALS);
    case "InvalidAccessKeyId":
    case "InvalidToken":
    case "UnrecognizedClientException":
      return new Problem("credentials", "The store does not know the credentials of this page.", CREDENTIALS);
    case "SignatureDoesNotMatch":
    case "AuthorizationHeaderMalformed":
      return new Problem("credentials", `The store refused the signature: ${message || code}`, CREDENTIALS);
    case "RequestTimeTooSkewed":
      return new Problem(
        "wrong",
        "This machine's clock is off by more than 15 minutes.",
        "Set its clock, then reload.",
      );
    case "NoSuchBucket":
      return new Problem(
        "missing",
        "The bucket that config.json names does not exist.",
        "Run `qo ui deploy` again.",
      );
    case "PreconditionFailed":
      return new Problem("moved", "Another writer changed it at the same moment.", "Refresh, then decide again.");
    case "AccessDenied":
      return new Problem("forbidden", `The credentials of this page do not allow: ${what}.`, CREDENTIALS);
  }
  if (status === 403) return new Problem("forbidden", `The store refused: ${what}.`, CREDENTIALS);
  if (status === 404) return new Problem("missing", `Not found: ${what}.`);
  if (status === 409 || status === 412) return new Problem("moved", "Another writer is changing it right now.");
  if (status === 429 || status >= 500)
    return new Problem(
      "busy",
      `The store answered ${status}${code ? ` ${code}` : ""}.`,
      "The page retries automatically.",
    );
  return new Problem("wrong", `The store answered ${status}${code ? ` ${code}` : ""}: ${message || what}`);
}

export function unreachable(host: string): Problem {
  return new Problem(
    "offline",
    `No answer from ${host}.`,
    "Is it running, and does it allow this page's address? `qo ui deploy` sets the rules of the bucket (CORS).",
  );
}
