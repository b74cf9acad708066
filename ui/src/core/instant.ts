/**
 * Moments as stored: ISO texts with microseconds. A Date keeps milliseconds only, and a task that was written back
 * with a rounded time would seem to have changed. So they are counted in microseconds, which a number holds exactly.
 */

const FORM = /^(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|z|[+-]\d\d:\d\d)$/;

/** Microseconds since 1970, or null if the text is no moment with a time zone. */
export function micros(text: string | null | undefined): number | null {
  const matched = text ? FORM.exec(text) : null;
  if (!matched) return null;
  const [, day, time, fraction = "", zone] = matched;
  const whole = Date.parse(`${day}T${time}${zone!.toUpperCase()}`);
  if (Number.isNaN(whole)) return null;
  return whole * 1000 + Number(fraction.slice(0, 6).padEnd(6, "0"));
}

/** As Python's encoder writes it: no fraction if there is none, else six digits. */
export function iso(at: number): string {
  const whole = Math.floor(at / 1e6);
  const fraction = at - whole * 1e6;
  const text = new Date(whole * 1000).toISOString().slice(0, 19);
  return fraction ? `${text}.${String(fraction).padStart(6, "0")}Z` : `${text}Z`;
}

export function seconds(text: string | null | undefined): number | null {
  const at = micros(text);
  return at === null ? null : at / 1e6;
}
