/**
 * A stored JSON object as text, changed member by member.
 *
 * What the page does not change it must give back to the letter. Reading a task with JSON.parse and writing it again
 * would turn 1.0 into 1 and round whole numbers beyond 2^53 in the user's own input.
 */

export class NotAnObject extends Error {}

/** The members of the outermost object, each as the text that it was written with. */
export function members(text: string): Map<string, string> {
  const found = new Map<string, string>();
  let at = skip(text, 0);
  if (text[at] !== "{") throw new NotAnObject("it is not a JSON object");
  at = skip(text, at + 1);
  if (text[at] === "}") return found;
  for (;;) {
    const nameEnd = endOfString(text, at);
    const name = JSON.parse(text.slice(at, nameEnd)) as string;
    at = skip(text, nameEnd);
    if (text[at] !== ":") throw new NotAnObject("a name without a value");
    const start = skip(text, at + 1);
    const end = endOfValue(text, start);
    found.set(name, text.slice(start, end));
    at = skip(text, end);
    if (text[at] === "}") return found;
    if (text[at] !== ",") throw new NotAnObject("two members without a comma");
    at = skip(text, at + 1);
  }
}

/** The text with some members replaced, or added behind the others. */
export function patched(text: string, changes: Record<string, unknown>): string {
  const all = members(text);
  for (const [name, value] of Object.entries(changes)) all.set(name, JSON.stringify(value));
  return `{${[...all].map(([name, raw]) => `${JSON.stringify(name)}:${raw}`).join(",")}}`;
}

function skip(text: string, at: number): number {
  while (at < text.length && " \t\r\n".includes(text[at]!)) at += 1;
  return at;
}

function endOfString(text: string, at: number): number {
  if (text[at] !== '"') throw new NotAnObject("a name must be in quotes");
  for (let i = at + 1; i < text.length; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === '"') return i + 1;
  }
  throw new NotAnObject("a text that does not end");
}

function endOfValue(text: string, at: number): number {
  if (text[at] === '"') return endOfString(text, at);
  let depth = 0;
  for (let i = at; i < text.length; i += 1) {
    const c = text[i]!;
    if (c === '"') i = endOfString(text, i) - 1;
    else if (c === "{" || c === "[") depth += 1;
    else if (c === "}" || c === "]") {
      if (depth === 0) return i;
      depth -= 1;
      if (depth === 0) return i + 1;
    } else if (depth === 0 && (c === "," || c === " " || c === "\n" || c === "\r" || c === "\t")) return i;
  }
  throw new NotAnObject("a value that does not end");
}

/** A number that JavaScript would round, as it was written. */
export class Exact {
  constructor(readonly text: string) {}
}

type Context = { source?: string };

/** JSON for people to look at: numbers that would be shown otherwise than written are kept as text, where the browser
 * tells how they were written. */
export function parseExact(text: string): unknown {
  const revive = (_: string, value: unknown, context?: Context): unknown =>
    typeof value === "number" && context?.source !== undefined && context.source !== String(value)
      ? new Exact(context.source)
      : value;
  try {
    return JSON.parse(text, revive as (key: string, value: unknown) => unknown);
  } catch (error) {
    if (error instanceof RangeError) return new Exact(text); // Nested so deep that the browser gives up.
    throw error;
  }
}
