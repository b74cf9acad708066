/** Nothing yet, nothing there, something wrong: each says what to do. */

import type { ComponentChildren, JSX } from "preact";
import type { Problem } from "../s3/problem";
import { askForCredentials } from "../shell/asking";
import type { Live } from "../shell/ticker";

export function Loading({ what }: { what: string }): JSX.Element {
  return (
    <div role="status">
      <div class="loading" />
      <span class="hidden-text">Loading {what}</span>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <span>{children}</span>}
    </div>
  );
}

export function Failure({ problem, old = false }: { problem: Problem; old?: boolean }): JSX.Element {
  return (
    <div class="said bad" role="alert">
      <strong>{problem.message}</strong>
      {problem.todo && <span>{inCode(problem.todo)}</span>}
      {problem.kind === "credentials" && (
        <span>
          <button type="button" onClick={() => askForCredentials(problem)}>
            Enter other credentials
          </button>
        </span>
      )}
      {old && <span class="second">This is the state of the last successful refresh.</span>}
    </div>
  );
}

/** The value once it is there; until then what there is to say instead. */
export function Shown<T>({
  live,
  what,
  children,
}: {
  live: Live<T>;
  what: string;
  children: (value: T) => ComponentChildren;
}): JSX.Element {
  return (
    <>
      {live.problem && <Failure problem={live.problem} old={live.value !== null} />}
      {live.value !== null ? children(live.value) : live.problem === null && <Loading what={what} />}
    </>
  );
}

/** Text with `commands` in it, set as code. */
export function inCode(text: string): ComponentChildren[] {
  return text.split("`").map((part, n) => (n % 2 ? <code key={n}>{part}</code> : part));
}

export function Panel({
  title,
  right,
  flush = false,
  children,
}: {
  title?: ComponentChildren;
  right?: ComponentChildren;
  flush?: boolean;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <section class="panel">
      {(title || right) && (
        <header>
          {title && <h2>{title}</h2>}
          {right && <div class="right">{right}</div>}
        </header>
      )}
      {flush ? (
        <div class="flush" tabIndex={0} role="group" aria-label={typeof title === "string" ? title : "table"}>
          {children}
        </div>
      ) : (
        <div class="body">{children}</div>
      )}
    </section>
  );
}
