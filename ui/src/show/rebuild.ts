/** How a version is getting on that is being built, in words. */

import type { Rebuild } from "../dispatcher/answers";
import { plural } from "./text";

/** Why a rebuild that is stuck does not go on, and what to do. */
export function stuckText({ blocked = 0, version }: Rebuild): string {
  const held = blocked ? plural(blocked, "task waits", "tasks wait") : "What is left waits";
  return `${held} for others that failed: replay those, or activate version ${version} as it is.`;
}
