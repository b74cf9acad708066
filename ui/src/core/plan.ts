/** The plan that leases shards to workers (shard-leases/plan.json), as qo.core.ownership has it. */

import { seconds } from "./instant";
import { allShards, SHARD_PLAN } from "./keys";
import { misfit } from "./shape";

const UNIT_LEN_MAX = 2; // Beyond 256 shards, all that begin with the same two characters are leased together.

export interface Grant {
  worker_id: string;
  first: string;
  last: string;
  since: string;
}

export interface ShardPlan {
  wait_s: number;
  grants: Grant[];
}

/** Adjacent shards of one worker, or of none. */
export interface Block {
  first: string;
  last: string;
  shards: number;
  grant: Grant | null;
}

/** Throws an error that names the object if it is no plan of a queue with so many shards. */
export function readPlan(text: string, prefixLen: number): ShardPlan {
  const plan = JSON.parse(text) as ShardPlan;
  const broken = new Error(`${SHARD_PLAN} is not a valid plan`);
  if (misfit({ plan }, { plan: {} }) || typeof plan.wait_s !== "number" || !Array.isArray(plan.grants)) throw broken;
  const units = new Set(allShards(Math.min(prefixLen, UNIT_LEN_MAX)));
  let last = "";
  for (const grant of plan.grants) {
    if (misfit({ grant }, { grant: {} }) || typeof grant.worker_id !== "string" || seconds(grant.since) === null)
      throw broken;
    if (!units.has(grant.first) || !units.has(grant.last) || !(last < grant.first && grant.first <= grant.last))
      throw broken;
    last = grant.last;
  }
  return plan;
}

/** All shards of the queue in key order, in blocks: those that were granted, and between them those that are nobody's. */
export function blocksOf(plan: ShardPlan, prefixLen: number): Block[] {
  const length = Math.min(prefixLen, UNIT_LEN_MAX);
  const found: Block[] = [];
  let next = 0;
  for (const grant of plan.grants) {
    const [first, last] = [Number.parseInt(grant.first, 16), Number.parseInt(grant.last, 16)];
    if (first > next) found.push(blockOf(next, first - 1, length, prefixLen, null));
    found.push(blockOf(first, last, length, prefixLen, grant));
    next = last + 1;
  }
  if (next < 16 ** length) found.push(blockOf(next, 16 ** length - 1, length, prefixLen, null));
  return found;
}

function blockOf(first: number, last: number, length: number, prefixLen: number, grant: Grant | null): Block {
  const unit = (place: number): string => place.toString(16).padStart(length, "0");
  return {
    first: unit(first).padEnd(prefixLen, "0"),
    last: unit(last).padEnd(prefixLen, "f"),
    shards: (last - first + 1) * 16 ** (prefixLen - length),
    grant,
  };
}
