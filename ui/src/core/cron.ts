/**
 * When a schedule runs next, as qo.core.schedule plans it: five fields in an IANA time zone, read as Debian's cron reads
 * them where clocks change. Vectors from Python (vectors/schedules.json) hold the two together.
 */

const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const DAYS_AHEAD_MAX = 366 * 8 + 2; // A 29th of February is at most eight years away.
const MINUTE = 60_000;

interface Plan {
  minutes: Set<number>;
  hours: Set<number>;
  days: Set<number>;
  months: Set<number>;
  weekdays: Set<number>;
  anyDay: boolean; // Both of the day fields must agree, because one of them begins with a star.
  elapsed: boolean; // Follows elapsed time where clocks change.
}

/** The first planned moment after `now`; null if the plan or the zone cannot be read, or nothing comes. */
export function nextRun(cron: string, timezone: string, now: Date): Date | null {
  const plan = parsed(cron);
  if (!plan) return null;
  let zone: Zone;
  try {
    zone = new Zone(timezone);
  } catch {
    return null;
  }
  const first = zone.wall(now.getTime());
  // From the day before: in the second pass of a repeated midnight, the first one's day is not over.
  for (let n = -1; n < DAYS_AHEAD_MAX; n += 1) {
    const day = Date.UTC(first.getUTCFullYear(), first.getUTCMonth(), first.getUTCDate() + n);
    if (!dayMatches(plan, new Date(day))) continue;
    for (const at of runsOf(plan, zone, day)) if (at > now.getTime()) return new Date(at);
  }
  return null;
}

function runsOf(plan: Plan, zone: Zone, day: number): number[] {
  const runs = new Set<number>();
  for (const hour of plan.hours)
    for (const minute of plan.minutes) {
      const wall = day + (hour * 60 + minute) * MINUTE;
      const moments = zone.moments(wall);
      if (moments.length) for (const at of plan.elapsed ? moments : moments.slice(0, 1)) runs.add(at);
      else if (!plan.elapsed) runs.add(zone.afterGap(wall));
    }
  return [...runs].sort((a, b) => a - b);
}

function dayMatches(plan: Plan, day: Date): boolean {
  if (!plan.months.has(day.getUTCMonth() + 1)) return false;
  const [ofMonth, ofWeek] = [plan.days.has(day.getUTCDate()), plan.weekdays.has(day.getUTCDay())];
  return plan.anyDay ? ofMonth && ofWeek : ofMonth || ofWeek;
}

function parsed(cron: string): Plan | null {
  const fields = cron.trim().toLowerCase().split(/\s+/);
  if (fields.length !== 5) return null;
  const [minute, hour, day, month, weekday] = fields as [string, string, string, string, string];
  const sets = [
    set(minute, 0, 59),
    set(hour, 0, 23),
    set(day, 1, 31),
    set(month, 1, 12, MONTHS, 1),
    set(weekday, 0, 7, DAYS, 0),
  ];
  if (sets.includes(null)) return null;
  const [minutes, hours, days, months, weekdays] = sets as Set<number>[];
  if (weekdays!.has(7)) weekdays!.add(0);
  return {
    minutes: minutes!,
    hours: hours!,
    days: days!,
    months: months!,
    weekdays: weekdays!,
    anyDay: day.startsWith("*") || weekday.startsWith("*"),
    elapsed: minute.startsWith("*") || hour.startsWith("*"),
  };
}

function set(field: string, low: number, high: number, names: string[] = [], base = 0): Set<number> | null {
  const found = new Set<number>();
  const number = (text: string): number => {
    const place = names.indexOf(text);
    return place >= 0 ? place + base : /^\d+$/.test(text) ? Number(text) : Number.NaN;
  };
  for (const part of field.split(",")) {
    const [range = "", step, ...rest] = part.split("/");
    const [from = "", to, ...more] = range.split("-");
    const by = step === undefined ? 1 : Number(step);
    const start = range === "*" ? low : number(from);
    const end =
      range === "*" || (to === undefined && step !== undefined) ? high : to === undefined ? start : number(to);
    if (rest.length || more.length || !(by >= 1) || !(start >= low && end <= high && start <= end)) return null;
    for (let n = start; n <= end; n += by) found.add(n);
  }
  return found;
}

/** A time zone: from moments to wall times (as if they were UTC) and back. */
class Zone {
  private readonly format: Intl.DateTimeFormat;

  constructor(name: string) {
    this.format = new Intl.DateTimeFormat("en-GB", {
      timeZone: name,
      hourCycle: "h23",
      year: "numeric",
      month: "2-digit",
      day: "2-digit",
      hour: "2-digit",
      minute: "2-digit",
    });
  }

  wall(at: number): Date {
    const said: Record<string, string> = {};
    for (const { type, value } of this.format.formatToParts(at)) said[type] = value;
    return new Date(`${said.year!.padStart(4, "0")}-${said.month}-${said.day}T${said.hour}:${said.minute}:00Z`);
  }

  private offset(at: number): number {
    return this.wall(at).getTime() - Math.floor(at / MINUTE) * MINUTE;
  }

  /** The moments at which clocks show a wall time: none in a gap, two where they were set back, else one. */
  moments(wall: number): number[] {
    const offsets = new Set([this.offset(wall - 86_400_000), this.offset(wall + 86_400_000)]);
    const found = [...offsets].map((offset) => wall - offset).filter((at) => this.wall(at).getTime() === wall);
    return found.sort((a, b) => a - b);
  }

  /** The first moment after the gap that a wall time lies in. */
  afterGap(wall: number): number {
    const before = wall - this.offset(wall - 86_400_000); // As if the clocks had not been set.
    let at = before;
    const offset = this.offset(wall + 86_400_000);
    while (this.offset(at - MINUTE) === offset) at -= MINUTE;
    return at;
  }
}
