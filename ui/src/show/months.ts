/** Days as a calendar: a row for each month, a place for each day. */

export interface Month {
  month: string; // 2026-01
  days: { key: string; within: boolean }[]; // 31 of them; within: between the first and the last partition.
}

const DAY = /^\d{4}-\d\d-\d\d$/;

/** The months of some keys, or null if they are no days. */
export function monthsOf(keys: string[]): Month[] | null {
  if (keys.length < 2 || !keys.every((key) => DAY.test(key))) return null;
  const sorted = [...keys].sort();
  const [first, last] = [sorted[0]!, sorted.at(-1)!];
  const months: Month[] = [];
  let [year, month] = [Number(first.slice(0, 4)), Number(first.slice(5, 7))];
  for (;;) {
    const name = `${String(year).padStart(4, "0")}-${String(month).padStart(2, "0")}`;
    if (name > last.slice(0, 7) || month > 12) break;
    const length = new Date(Date.UTC(year, month, 0)).getUTCDate();
    const days = Array.from({ length: 31 }, (_, n) => {
      const key = `${name}-${String(n + 1).padStart(2, "0")}`;
      return { key, within: n < length && key >= first && key <= last };
    });
    months.push({ month: name, days });
    [year, month] = month === 12 ? [year + 1, 1] : [year, month + 1];
    if (months.length > 1200) return null; // A stray date in the year 1 makes no calendar.
  }
  return months;
}
