/** Tasks that were routed to one worker: they wait in its inbox instead of the ready index. */

import type { Catalogue } from "./catalogue";
import type { WorkerInfo } from "./roster";
import type { QueueView } from "./view";

/**
 * The inboxes as they are listed now; none if no worker has one, so that other queues cost no request for it. Who may not
 * list them still sees everything else.
 */
export async function lookInboxes(queue: QueueView, workers: WorkerInfo[], pages?: number): Promise<Catalogue[]> {
  if (!workers.some((each) => each.inbox_until !== null)) return [];
  return await listInboxes(queue, pages);
}

export async function listInboxes(queue: QueueView, pages?: number): Promise<Catalogue[]> {
  const inboxes = queue.inboxes();
  try {
    await inboxes.advance(pages);
  } catch {
    return [];
  }
  return [inboxes];
}
