/** What may be done with a task, each after a question. */

import type { JSX } from "preact";
import { allowed, type Verb } from "../core/lifecycle";
import type { Task } from "../core/task";
import { move } from "../queue/moves";
import { useApp } from "../shell/app";
import { Confirm } from "../show/confirm";

const WORDS: Record<Verb, { button: string; title: string; text: string; done: string }> = {
  replay: {
    button: "Replay",
    title: "Run this task again?",
    text: "It becomes pending at once, with all its retries.",
    done: "replayed",
  },
  archive: {
    button: "Archive",
    title: "Archive this task?",
    text: "The task is kept, but lists leave it out. You can unarchive it later.",
    done: "archived",
  },
  unarchive: {
    button: "Unarchive",
    title: "Unarchive this task?",
    text: "It returns to its earlier status.",
    done: "unarchived",
  },
  cancel: {
    button: "Cancel",
    title: "Cancel this task?",
    text: "A pending task ends at once. A running one is asked to stop; its worker notices within seconds.",
    done: "cancelled",
  },
};

export function Actions({ task }: { task: Task }): JSX.Element {
  const { queue, bucket, mayAct } = useApp();
  if (!mayAct) return <span class="quiet">These credentials are read-only.</span>;
  const act =
    (verb: Verb) =>
    async (reason: string | null): Promise<string> => {
      const { shard_prefix_len } = await queue.manifest();
      const said = verb === "cancel" ? { by: "the dashboard", reason } : {};
      const after = await move(bucket, shard_prefix_len, task.id, verb, said);
      return verb === "cancel" && after.status === "running"
        ? "The task was asked to stop."
        : `The task was ${WORDS[verb].done}.`;
    };
  return (
    <>
      {allowed(task).map((verb) => (
        <Confirm
          key={verb}
          button={WORDS[verb].button}
          title={WORDS[verb].title}
          yes={`${WORDS[verb].button} the task`}
          danger={verb === "cancel"}
          reason={verb === "cancel"}
          act={act(verb)}
        >
          {WORDS[verb].text}
        </Confirm>
      ))}
    </>
  );
}
