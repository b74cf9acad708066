/** What every page needs: the store, the queue in it, the dispatcher, and what may be done. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Dispatcher } from "../dispatcher/client";
import type { QueueView } from "../queue/view";
import type { Bucket } from "../s3/client";
import type { Config } from "../start/config";

export interface App {
  config: Config;
  bucket: Bucket;
  queue: QueueView;
  dispatcher: Dispatcher | null;
  mayAct: boolean;
  queues: string[]; // Prefixes of the queues that can be chosen beside the first.
  chosen: string; // The one that is shown; "" is the first.
}

export const AppContext = createContext<App | null>(null);

export function useApp(): App {
  const app = useContext(AppContext);
  if (app === null) throw new Error("a page outside of the app");
  return app;
}
