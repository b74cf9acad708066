/** What operators want of the workers (control/desired.json): read for people, and told of cancellations. */

import { patched } from "./document";
import { iso, micros } from "./instant";
import { DESIRED } from "./keys";
import { misfit } from "./shape";

export interface Pause {
  at: string;
  by: string | null;
  reason: string | null;
}

export interface WorkerOrder extends Pause {
  wanted: "paused" | "drained";
}

export interface Desired {
  queue: Pause | null;
  types: Record<string, Pause>;
  workers: Record<string, WorkerOrder>;
  cancels: Record<string, string>;
}

const CANCELS_KEPT_US = 600e6;
const CANCELS_MAX = 1000;
const NOTHING = '{"queue":null,"types":{},"workers":{},"cancels":{},"token":"","updated_at":null,"format":1}';

export function readDesired(text: string | null): Desired {
  const found = (text ? JSON.parse(text) : {}) as Partial<Desired>;
  const orders = [...Object.values(found.types ?? {}), ...Object.values(found.workers ?? {}), found.queue ?? {}];
  if (misfit({ found }, { found: {} }) || misfit(found, { types: {}, workers: {}, cancels: {} }))
    throw new Error(`${DESIRED} is not a valid document`);
  if (orders.some((each) => misfit({ each }, { each: {} }) || misfit(each, { by: null, reason: null })))
    throw new Error(`${DESIRED} contains an invalid order`);
  return { queue: null, types: {}, workers: {}, cancels: {}, ...found };
}

/** The text with the news that a running task was asked to stop, and without news that everyone has heard by now. */
export function withCancel(text: string | null, taskId: string, now: number, token: string): string {
  const cancels = { ...readDesired(text).cancels };
  if ((micros(cancels[taskId]) ?? 0) < now) cancels[taskId] = iso(now);
  const recent = Object.entries(cancels).filter(([, at]) => now - (micros(at) ?? 0) <= CANCELS_KEPT_US);
  const age = ([id, at]: [string, string]): [number, string] => [micros(at) ?? 0, id];
  if (recent.length < Object.keys(cancels).length || recent.length > CANCELS_MAX)
    recent.sort((one, two) => {
      const [a, b] = [age(one), age(two)];
      return a[0] - b[0] || (a[1] < b[1] ? -1 : 1);
    });
  const kept = Object.fromEntries(recent.slice(-CANCELS_MAX));
  return patched(text ?? NOTHING, { cancels: kept, token, updated_at: iso(now) });
}

/** Who gave an order and why, as far as is known. */
export function told(order: Pause): string {
  return [order.by ? `by ${order.by}` : "", order.reason ?? ""].filter(Boolean).join(": ");
}
