/** Search over everything that has a name. One key opens it, arrows choose, Enter goes there. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { SearchAnswer, SearchHit } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { type Problem, problemOf } from "../s3/problem";
import { Failure } from "../show/states";
import { href } from "./router";

const PAUSE_MS = 120; // Between the last key and the question.

let openBox: (() => void) | null = null;

/** Whether there is something to search. */
export function openSearch(): boolean {
  openBox?.();
  return openBox !== null;
}

export function SearchButton(): JSX.Element {
  return (
    <button type="button" class="search-button" onClick={() => openSearch()}>
      Search <kbd>/</kbd>
    </button>
  );
}

export function Search({ dispatcher }: { dispatcher: Dispatcher }): JSX.Element | null {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    openBox = () => setOpen(true);
    return () => {
      openBox = null;
    };
  }, []);
  return isOpen ? <Box dispatcher={dispatcher} close={() => setOpen(false)} /> : null;
}

function Box({ dispatcher, close }: { dispatcher: Dispatcher; close: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const { answer, problem } = useAnswer(dispatcher, text.trim());
  const hits = answer?.hits ?? [];
  useEffect(() => dialog.current?.showModal(), []);
  useEffect(() => setAt(0), [answer]);
  const follow = (hit: SearchHit | undefined): void => {
    if (!hit) return;
    location.hash = targetOf(hit);
    close();
  };
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined || !hits.length) return;
    event.preventDefault();
    setAt((at + step + hits.length) % hits.length);
  };
  return (
    <dialog ref={dialog} class="search" onClose={close} aria-label="Search">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          follow(hits[at]);
        }}
      >
        <input
          aria-label="Search"
          placeholder="a pipeline, job, dataset, dataset@partition, or the id of a run"
          autocomplete="off"
          spellcheck={false}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={move}
        />
        {problem && <Failure problem={problem} />}
        <ul aria-label="What matches">
          {hits.map((hit, n) => (
            <li key={`${hit.kind} ${hit.name} ${hit.task_id}`}>
              <a
                href={targetOf(hit)}
                onClick={close}
                onPointerMove={() => setAt(n)}
                {...(n === at ? { "aria-current": "true" as const } : {})}
              >
                <span class="chip">{hit.kind}</span> <strong>{hit.name}</strong>{" "}
                <span class="quiet">{hit.about}</span>
              </a>
            </li>
          ))}
        </ul>
        {answer && hits.length === 0 && <p class="quiet">Nothing has such a name.</p>}
        {answer?.more && <p class="quiet">There are more: type more of the name.</p>}
      </form>
    </dialog>
  );
}

function useAnswer(dispatcher: Dispatcher, text: string): { answer: SearchAnswer | null; problem: Problem | null } {
  const [answer, setAnswer] = useState<SearchAnswer | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    let isCurrent = true;
    if (!text) {
      setAnswer(null);
      setProblem(null);
      return;
    }
    const timer = setTimeout(() => {
      dispatcher.get<SearchAnswer>(["search"], { text }).then(
        (found) => {
          if (!isCurrent) return; // Another question was asked meanwhile.
          setAnswer(found);
          setProblem(null);
        },
        (error) => isCurrent && setProblem(problemOf(error)),
      );
    }, PAUSE_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text]);
  return { answer, problem };
}

function targetOf(hit: SearchHit): string {
  if (hit.task_id) return href(["run", hit.task_id]);
  if (hit.partition_key && hit.dataset) return href(["dataset", hit.dataset], { partition: hit.partition_key });
  if (hit.dataset) return href(["dataset", hit.dataset]);
  if (hit.job && hit.dag) return href(["pipeline", hit.dag], { focus: hit.job });
  return href(["pipeline", hit.name]);
}
