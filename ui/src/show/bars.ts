/** Bars of several parts, as paths of an SVG of 100 by 100: one path for each part, however many bars there are. */

export interface Part {
  name: string;
  colour: string; // The name of a CSS variable.
  values: (number | null)[];
}

const GAP = 0.18; // Of the width of a bar.
const LEAST = 2; // Something must not look like nothing.

export function pathsOf(parts: Part[], bars: number): string[] {
  const sums = Array.from({ length: bars }, (_, n) => parts.reduce((sum, part) => sum + (part.values[n] ?? 0), 0));
  const most = Math.max(0, ...sums) || 1;
  const width = 100 / Math.max(1, bars);
  const tops = Array.from({ length: bars }, () => 100);
  return parts.map((part) => {
    let path = "";
    for (let n = 0; n < bars; n += 1) {
      const value = part.values[n] ?? 0;
      if (value <= 0) continue;
      const height = Math.max(LEAST, (100 * value) / most);
      tops[n]! -= height;
      const left = width * (n + GAP / 2);
      path += `M${round(left)} ${round(tops[n]!)}h${round(width * (1 - GAP))}v${round(height)}h${round(-width * (1 - GAP))}z`;
    }
    return path;
  });
}

/** The bar under a place, 0 to 1 from the left. */
export function barAt(place: number, bars: number): number {
  return Math.min(bars - 1, Math.max(0, Math.floor(place * bars)));
}

/** Where a key leads from a bar; null: it is no key of a chart. */
export function moved(at: number, key: string, bars: number): number | null {
  const steps: Record<string, number> = {
    ArrowLeft: -1,
    ArrowDown: -1,
    ArrowRight: 1,
    ArrowUp: 1,
    PageDown: -10,
    PageUp: 10,
    Home: -bars,
    End: bars,
  };
  const step = steps[key];
  return step === undefined ? null : Math.min(bars - 1, Math.max(0, at + step));
}

function round(n: number): number {
  return Math.round(n * 1000) / 1000;
}
