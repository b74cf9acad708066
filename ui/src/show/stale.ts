/** What is stale, in words: made from inputs that have changed since. */

import type { StaleCount, StaleInput } from "../dispatcher/answers";
import { plural } from "./text";

/** Of one partition, or of an answer; a dispatcher that is older than this page says nothing about it. */
export function staleReasons(of: { stale_inputs?: StaleInput[] }): string[] {
  return (of.stale_inputs ?? []).map((each) => each.text);
}

/** Beside the number of partitions; empty if there is nothing to tell. */
export function staleCount(counted: StaleCount | null | undefined): string {
  if (!counted || (counted.partitions === 0 && !counted.at_least)) return "";
  return counted.at_least ? `at least ${counted.partitions} stale` : `${counted.partitions} stale`;
}

export function staleTitle(partitions: number, more: boolean, counted: StaleCount | null | undefined): string {
  const stale = staleCount(counted);
  return plural(partitions, "partition") + (more ? " and more" : "") + (stale && `, ${stale}`);
}
