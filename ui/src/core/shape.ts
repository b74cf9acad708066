/** Whether what was stored is of the kind that it should be. Whoever may write to the bucket may write anything. */

/**
 * The first member that is not of the kind of its example, or null if there is none. A null as example stands for a text
 * or nothing; an array, for texts. Members without an example may be anything.
 */
export function misfit(found: object, examples: object): string | null {
  for (const [name, example] of Object.entries(examples)) {
    const value: unknown = (found as Record<string, unknown>)[name];
    if (value !== undefined && !fits(value, example)) return name;
  }
  return null;
}

function fits(value: unknown, example: unknown): boolean {
  if (example === null) return value === null || typeof value === "string";
  if (Array.isArray(example)) return Array.isArray(value) && value.every((each) => typeof each === "string");
  if (typeof example === "object") return typeof value === "object" && value !== null && !Array.isArray(value);
  return typeof value === typeof example;
}
