/** Nothing is shown without credentials that hold. They live in this component, and end with the tab. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Dispatcher } from "../dispatcher/client";
import { Pages } from "../pages/pages";
import { QueueView } from "../queue/view";
import { Bucket } from "../s3/client";
import { Problem, problemOf } from "../s3/problem";
import { forgetSigningKey } from "../s3/signing";
import { Failure } from "../show/states";
import { type Config, QUEUE } from "../start/config";
import { type Credentials, readCredentials, takeFromAddress } from "../start/credentials";
import { type App, AppContext } from "./app";
import { onAsking } from "./asking";
import { useRoute } from "./router";

export function Gate({ config, given }: { config: Config; given: string | null }): JSX.Element {
  const [credentials, setCredentials] = useState<Credentials | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);

  // When credentials end is said in the server's time, and clocks of people's machines are off by hours.
  const leftMs = (until: number): number => until * 1000 - (Date.now() + config.aheadMs);

  const take = (text: string): void => {
    try {
      const found = readCredentials(text);
      if (found.expiresAt !== null && leftMs(found.expiresAt) <= 0) throw expired();
      setCredentials(found);
      setProblem(null);
    } catch (error) {
      setProblem(problemOf(error));
    }
  };

  // Once, with what the page was opened with.
  useEffect(() => {
    if (given !== null) take(given);
    // Whoever pastes a whole link into the address of an open page gets no reload, only a new fragment.
    const follow = (): void => {
      const text = takeFromAddress();
      if (text !== null) take(text);
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);

  const leave = (why: Problem): void => {
    forgetSigningKey();
    setCredentials(null);
    setProblem(why);
  };
  useEffect(() => onAsking(leave));

  useEffect(() => {
    if (credentials?.expiresAt == null) return;
    const left = Math.min(leftMs(credentials.expiresAt), 2 ** 31 - 1);
    const timer = setTimeout(() => leave(expired()), Math.max(0, left));
    return () => clearTimeout(timer);
  }, [credentials]);

  const wanted = useRoute().query.queue ?? "";
  const chosen = QUEUE.test(wanted) ? wanted : ""; // It becomes part of keys: nothing else may.
  const apps = useMemo(() => (credentials === null ? null : new Apps(config, credentials)), [config, credentials]);
  const queues = useQueues(apps);
  const app = useMemo<App | null>(() => apps && { ...apps.of(chosen), queues }, [apps, chosen, queues]);

  if (app !== null)
    return (
      <AppContext.Provider value={app}>
        <Pages key={chosen} />
      </AppContext.Provider>
    );
  return <Ask take={take} problem={problem} config={config} />;
}

/** What was learned of each queue stays while one looks at another. */
class Apps {
  private readonly made = new Map<string, App>();

  constructor(
    private readonly config: Config,
    private readonly credentials: Credentials,
  ) {}

  of(chosen: string): App {
    const { config, credentials } = this;
    const there = this.made.get(chosen);
    if (there) return there;
    const bucket = new Bucket({ ...config, prefix: config.prefix + chosen }, () => credentials);
    const dispatcher =
      config.dispatcher === null ? null : new Dispatcher(config.dispatcher, () => credentials.dispatcherToken);
    const queue = new QueueView(bucket, config.silentMaxS);
    const app = { config, bucket, queue, dispatcher, mayAct: credentials.mayAct, queues: [], chosen };
    this.made.set(chosen, app);
    return app;
  }
}

/** The queues below: as the configuration says, else asked for once. */
function useQueues(apps: Apps | null): string[] {
  const [found, setFound] = useState<string[]>([]);
  useEffect(() => {
    if (apps === null) return;
    const { config, bucket } = apps.of("");
    if (config.queues !== null) setFound(config.queues);
    else
      bucket.folders("queues/").then(
        (all) => setFound(all.filter((each) => QUEUE.test(each))),
        () => undefined, // Without the right to look for others, the first is all there is.
      );
  }, [apps]);
  return found;
}

function expired(): Problem {
  return new Problem("credentials", "These credentials have expired.", "Get new ones.");
}

function Ask({ take, problem, config }: { take: (text: string) => void; problem: Problem | null; config: Config }) {
  const [text, setText] = useState("");
  const local = config.endpoint === `${location.origin}/s3`;
  return (
    <main class="gate">
      <h1>qo · {config.bucket}</h1>
      {problem && <Failure problem={new Problem("wrong", problem.message, problem.todo)} />}
      {local ? (
        <p>
          Open the link that <code>qo ui</code> or <code>qo up</code> printed, or paste it here.
        </p>
      ) : (
        <p>
          This page reads the bucket directly and needs short-lived credentials for it. Run{" "}
          <code>qo ui credentials</code> on a machine with qo, and paste its output.
        </p>
      )}
      <form
        class="page"
        onSubmit={(event) => {
          event.preventDefault();
          take(text);
        }}
      >
        <label class="field">
          {local ? "Link" : "Credentials"}
          <textarea
            autocomplete="off"
            spellcheck={false}
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <div>
          <button type="submit" class="main-action" disabled={!text.trim()}>
            Open
          </button>
        </div>
      </form>
      <p class="quiet">The credentials are kept in the memory of this tab only, until you close or reload it.</p>
    </main>
  );
}
