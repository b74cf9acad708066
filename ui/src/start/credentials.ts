/** Short-lived credentials: taken from the address or pasted, kept in memory, never stored. */

import { micros } from "../core/instant";
import { Problem } from "../s3/problem";
import type { Keys } from "../s3/signing";

export interface Credentials extends Keys {
  expiresAt: number | null; // Seconds since 1970.
  dispatcherToken: string | null;
  mayAct: boolean;
}

const HOW = "Paste the whole text that `qo ui credentials` printed.";

/** What base64url text from `qo ui credentials` says. */
export function readCredentials(text: string): Credentials {
  let found: Record<string, unknown>;
  try {
    const compact = text.trim().replace(/^.*#c=/s, "");
    const bytes = Uint8Array.from(atob(compact.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    found = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes)) as Record<string, unknown>;
  } catch {
    throw new Problem("credentials", "These are not valid credentials, or they are incomplete.", HOW);
  }
  const { access_key_id, secret_access_key, session_token, expires_at, dispatcher_token, may_act } = found ?? {};
  if (typeof access_key_id !== "string" || typeof secret_access_key !== "string")
    throw new Problem("credentials", "These credentials contain no key.", HOW);
  const until = typeof expires_at === "string" ? micros(expires_at) : null;
  if (typeof expires_at === "string" && until === null)
    throw new Problem("credentials", "The expiry of these credentials is missing or invalid.", HOW);
  return {
    accessKeyId: access_key_id,
    secretAccessKey: secret_access_key,
    sessionToken: typeof session_token === "string" ? session_token : null,
    expiresAt: until === null ? null : until / 1e6,
    dispatcherToken: typeof dispatcher_token === "string" ? dispatcher_token : null,
    mayAct: may_act === true,
  };
}

/** Take the credentials out of the address, so that they are in no history, bookmark or screenshot. */
export function takeFromAddress(): string | null {
  const matched = /^#c=([A-Za-z0-9_=-]+)(?:&(\/.*))?$/.exec(location.hash);
  if (!matched) return null;
  history.replaceState(null, "", `${location.pathname}${location.search}#${matched[2] ?? "/"}`);
  return matched[1]!;
}
