/** Values that are encrypted with a key of the user's, which the page never has: sealed:v1:KEY:DATA. */

const SEALED = /^sealed:v1:([A-Za-z0-9._-]{1,64}):/;

/** The id of the key that a value is encrypted with, or null if it is not encrypted. */
export function sealedWith(value: unknown): string | null {
  const matched = typeof value === "string" ? SEALED.exec(value) : null;
  return matched ? matched[1]! : null;
}

/** What the page shows in place of an encrypted value; any other value as it is. */
export function unsealed<T>(value: T): T | string {
  const key = sealedWith(value);
  return key === null ? value : `encrypted with key ${key}`;
}
