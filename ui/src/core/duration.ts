/** Durations as people read and write them: 90, 45s, 1h30m, 3d 4h. The same words as on the command line. */

const UNITS: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };

/** Seconds, or null if this is no duration. A number alone means seconds. */
export function parseDuration(text: string): number | null {
  const compact = text.replaceAll(" ", "");
  if (/^\d+(\.\d+)?$/.test(compact)) return Number(compact);
  const parts = [...compact.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d|w)/g)];
  if (!parts.length || parts.map((part) => part[0]).join("") !== compact) return null;
  return parts.reduce((sum, part) => sum + Number(part[1]) * UNITS[part[2]!]!, 0);
}

/** The two largest units, which is all a reader looks at. */
export function formatDuration(seconds: number): string {
  let left = Math.max(0, Math.round(seconds));
  const parts: string[] = [];
  for (const unit of ["d", "h", "m", "s"]) {
    const count = Math.floor(left / UNITS[unit]!);
    left -= count * UNITS[unit]!;
    if (count) parts.push(`${count}${unit}`);
  }
  return parts.slice(0, 2).join(" ") || "0s";
}

/** For spans that may be short: 42 ms, 1.4 s, then as above. */
export function formatSpan(seconds: number): string {
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  return formatDuration(seconds);
}
