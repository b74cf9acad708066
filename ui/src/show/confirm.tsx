/** A question before something is changed. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Problem, problemOf } from "../s3/problem";
import { say } from "../shell/notice";
import { ticker } from "../shell/ticker";
import { Failure } from "./states";

interface Asked {
  button: string;
  title: string;
  yes?: string; // What the button in the dialog says, where the first one alone could be misread.
  danger?: boolean;
  disabled?: boolean;
  reason?: boolean; // Whether to ask why.
  sure?: string | null; // What has to be ticked first, where something speaks against it.
  act: (reason: string | null) => Promise<string>; // What was done, in words.
  children: ComponentChildren; // What will happen.
}

/** Where one question takes the place of another, because somebody else was quicker, an open one must not become it. */
export function Confirm(asked: Asked): JSX.Element {
  return <Question key={asked.title} {...asked} />;
}

function Question({
  button,
  title,
  yes,
  danger = false,
  disabled = false,
  reason = false,
  sure = null,
  act,
  children,
}: Asked): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [why, setWhy] = useState("");
  const [ticked, setTicked] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);

  useEffect(() => {
    if (open) dialog.current?.showModal();
    else dialog.current?.close();
    setTicked(false); // Each question is answered anew.
    setProblem(null);
  }, [open]);

  const go = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      say(await act(why.trim() || null));
      setOpen(false);
      void ticker.round();
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };

  return (
    <>
      <button type="button" class={danger ? "danger" : ""} disabled={disabled} onClick={() => setOpen(true)}>
        {button}
      </button>
      {open && (
        <dialog ref={dialog} onClose={() => setOpen(false)} aria-labelledby="question">
          <form onSubmit={(event) => void go(event)}>
            <h1 id="question">{title}</h1>
            <div class="second wrap">{children}</div>
            {reason && (
              <label class="field">
                Why (is written down)
                <input value={why} maxLength={500} onInput={(event) => setWhy(event.currentTarget.value)} />
              </label>
            )}
            {sure !== null && (
              <label class="tick">
                <input
                  type="checkbox"
                  checked={ticked}
                  onChange={(event) => setTicked(event.currentTarget.checked)}
                />
                {sure}
              </label>
            )}
            {problem && <Failure problem={problem} />}
            <div class="buttons">
              <button type="button" onClick={() => setOpen(false)}>
                Close
              </button>
              <button
                type="submit"
                class={danger ? "danger" : "main-action"}
                disabled={busy || (sure !== null && !ticked)}
              >
                {busy ? "One moment…" : (yes ?? button)}
              </button>
            </div>
          </form>
        </dialog>
      )}
    </>
  );
}
