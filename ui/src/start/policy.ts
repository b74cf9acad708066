/**
 * A second security policy, with exactly the addresses that config.json names. A browser enforces the stricter of two
 * policies at every point, so this one narrows what index.html had to leave open.
 */

import type { Config } from "./config";

export function narrowConnections(config: Config): void {
  const hosts = [config.endpoint, config.dispatcher].flatMap((address) =>
    address ? [new URL(address).origin] : [],
  );
  const policy = document.createElement("meta");
  policy.httpEquiv = "Content-Security-Policy";
  policy.content = `connect-src ${["'self'", ...new Set(hosts)].join(" ")}`;
  document.head.append(policy);
}
