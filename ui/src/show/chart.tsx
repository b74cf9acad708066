/** Series over time, drawn by uPlot; in words for who cannot see them. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Series {
  name: string;
  colour: string; // The name of a CSS variable.
  values: (number | null)[];
  bars?: boolean;
}

interface Wanted {
  times: number[]; // Seconds since 1970.
  series: Series[];
  label: string;
  height?: number;
  spark?: boolean;
}

export function Chart({ times, series, label, height = 130, spark = false }: Wanted): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const reading = useRef<HTMLDivElement>(null);
  const data = [times, ...series.map((each) => each.values)] as uPlot.AlignedData;
  const latest = useRef(data);
  latest.current = data;
  const shape = series.map((each) => `${each.name}${each.colour}${each.bars}`).join();

  // A new plot only for another shape; data is set below.
  useEffect(() => {
    const element = place.current!;
    const draw = (): void => {
      plot.current?.destroy();
      plot.current = new uPlot(
        options(series, element, height, spark, (text) => tell(reading.current, text)),
        latest.current,
        element,
      );
    };
    draw();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    resized.observe(element);
    const theme = new MutationObserver(draw); // Canvas colours do not follow the theme by themselves.
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      resized.disconnect();
      theme.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, height, spark]);

  useEffect(() => plot.current?.setData(data));
  return (
    <div class={spark ? "chart spark" : "chart"} style={{ height }} role="img" aria-label={label}>
      <div ref={place} />
      {!spark && <div ref={reading} class="reading" aria-hidden="true" />}
    </div>
  );
}

function tell(place: HTMLElement | null, text: string): void {
  if (place) place.textContent = text;
}

function options(
  series: Series[],
  element: HTMLElement,
  height: number,
  spark: boolean,
  read: (text: string) => void,
): uPlot.Options {
  const css = getComputedStyle(document.documentElement);
  const colour = (name: string): string => css.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--ink-3"),
    font: "11px system-ui",
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: Math.max(40, element.clientWidth),
    height,
    legend: { show: false },
    hooks: { setCursor: [(u) => read(pointed(u, series))] },
    cursor: { show: !spark, y: false, points: { size: 6 } },
    padding: spark ? [2, 2, 2, 2] : [8, 18, 0, 0],
    scales: { y: { range: (_, __, max) => [0, Math.max(1, (max ?? 0) * 1.1)] } },
    axes: spark
      ? [{ show: false }, { show: false }]
      : [
          {
            ...axis,
            grid: { show: false },
            space: 70,
            size: 26,
            values: (_, splits) => splits.map((at) => clock(at)),
          },
          {
            ...axis,
            size: 44,
            space: 28,
            incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6],
          },
        ],
    series: [
      {},
      ...series.map(
        (each): uPlot.Series => ({
          label: each.name,
          stroke: colour(each.colour),
          width: each.bars ? 0 : 1.5,
          fill: `color-mix(in srgb, ${colour(each.colour)} ${each.bars ? 75 : 14}%, transparent)`,
          points: { show: false },
          spanGaps: true,
          ...(each.bars ? { paths: uPlot.paths.bars!({ size: [0.72, 40], radius: 0.15 }) } : {}),
        }),
      ),
    ],
  };
}

function clock(at: number): string {
  const date = new Date(at * 1000);
  return `${String(date.getHours()).padStart(2, "0")}:${String(date.getMinutes()).padStart(2, "0")}`;
}

/** What lies under the pointer, in words. */
function pointed(u: uPlot, series: Series[]): string {
  const at = u.cursor.idx;
  if (at === null || at === undefined) return "";
  const values = series.map((each, n) => `${(u.data[n + 1]?.[at] ?? 0).toLocaleString("en")} ${each.name}`);
  return `${clock(u.data[0][at]!)}  ${values.join(", ")}`;
}
