/** How a version is getting on that is being built, in words. */

import type { Rebuild } from "../dispatcher/answers";
import { plural } from "./text";

/** Why a rebuild that is stuck does not go on, and what to do. */
export function stuckText({ blocked = 0, version }: Rebuild): string {
  const held = blocked ? plural(blocked, "task waits", "tasks wait") : "The remaining tasks wait";
  return `${held} for failed tasks: replay those, or activate version ${version} incomplete.`;
}
