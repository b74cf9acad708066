/** Which worker owns which shards, if they are leased. */

import { iso, micros, seconds } from "../core/instant";
import { SHARD_PLAN } from "../core/keys";
import { type Block, blocksOf, readPlan, type ShardPlan } from "../core/plan";
import type { Bucket } from "../s3/client";
import { leaseSilentMaxOf, type WorkerInfo } from "./roster";

export interface OwnedBlock extends Block {
  moving: boolean; // Granted so recently that the one before may still list them.
  heardAt: string | null; // When the owner last reported.
  expiresAt: string | null; // When the shards become another's unless it reports again.
}

/** Reads the plan, and again only when it has changed. */
export class Plans {
  private kept: { etag: string; plan: ShardPlan } | null = null;

  constructor(private readonly bucket: Bucket) {}

  /** The plan; null if there is none. It is looked for in a listing: browsers write down every 404 as an error. */
  async look(prefixLen: number): Promise<ShardPlan | null> {
    const { entries } = await this.bucket.list(SHARD_PLAN, "", 1);
    const [entry] = entries;
    if (entry?.key !== SHARD_PLAN) return null;
    if (this.kept?.etag === entry.etag) return this.kept.plan;
    const stored = await this.bucket.get(SHARD_PLAN);
    if (stored === null) return null;
    const plan = readPlan(stored.text, prefixLen);
    this.kept = { etag: stored.etag || entry.etag, plan };
    return plan;
  }
}

/** All shards in key order, with what is known of their owners. */
export function ownedBlocks(plan: ShardPlan, prefixLen: number, workers: WorkerInfo[], now: number): OwnedBlock[] {
  const byId = new Map(workers.map((each) => [each.worker_id, each]));
  return blocksOf(plan, prefixLen).map((block) => {
    const owner = block.grant && byId.get(block.grant.worker_id);
    const heardAt = owner?.last_heartbeat ?? null;
    const heard = micros(heardAt);
    return {
      ...block,
      moving: block.grant !== null && now < (seconds(block.grant.since) ?? 0) + plan.wait_s,
      heardAt,
      expiresAt: owner && heard !== null ? iso(heard + leaseSilentMaxOf(owner) * 1e6) : null,
    };
  });
}
