/** What a run has printed and logged: one attempt at a time, line by line while it runs. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { LogLine, RunLog, RunShown } from "../dispatcher/answers";
import type { Dispatcher } from "../dispatcher/client";
import { type Problem, problemOf } from "../s3/problem";
import { ticker } from "../shell/ticker";
import { Empty, Failure, Loading, Panel } from "../show/states";
import { plural } from "../show/text";

const PERIOD_MS = 2000; // While it runs and somebody looks.
const FIRST = 500; // Lines from the end.
const PAGE = 1000;
const LINES_MAX = 5000; // On the page.

interface Looked {
  lines: LogLine[];
  running: boolean;
  loaded: boolean;
  problem: Problem | null;
}

const NOTHING: Looked = { lines: [], running: false, loaded: false, problem: null };

export function Log({ dispatcher, run }: { dispatcher: Dispatcher; run: RunShown }): JSX.Element | null {
  const newest = run.attempts.at(-1)?.attempt ?? null;
  const [chosen, choose] = useState<number | null>(null);
  const [whole, setWhole] = useState(false);
  const attempt = chosen ?? newest;
  const looked = useLog(dispatcher, run.id, attempt, whole);
  if (attempt === null) return null;
  const hidden = (looked.lines[0]?.n ?? 1) - 1;
  return (
    <Panel title="Log">
      <div class="filters">
        {run.attempts.length > 1 && (
          <label class="field">
            Attempt
            <select value={String(attempt)} onChange={(event) => choose(Number(event.currentTarget.value))}>
              {run.attempts.map((each) => (
                <option key={each.attempt} value={String(each.attempt)}>
                  {each.attempt}
                </option>
              ))}
            </select>
          </label>
        )}
        {hidden > 0 && !whole && (
          <button type="button" onClick={() => setWhole(true)}>
            Show from the beginning
          </button>
        )}
        {looked.running && <span class="quiet">still running</span>}
      </div>
      {looked.problem && <Failure problem={looked.problem} old={looked.loaded} />}
      {looked.lines.length > 0 ? (
        <Lines lines={looked.lines} />
      ) : looked.loaded ? (
        <Empty title="Nothing was printed or logged" />
      ) : (
        looked.problem === null && <Loading what="the log" />
      )}
    </Panel>
  );
}

/** The lines of an attempt, asked for until it has ended; none while the tab is hidden or refreshing is off. */
function useLog(dispatcher: Dispatcher, id: string, attempt: number | null, whole: boolean): Looked {
  const [looked, setLooked] = useState<Looked>(NOTHING);
  useEffect(() => {
    setLooked(NOTHING);
    if (attempt === null) return;
    let timer: ReturnType<typeof setTimeout> | null = null;
    let left = false;
    let after: number | null = whole ? 0 : null;
    const look = async (): Promise<void> => {
      let wait: number | null = PERIOD_MS;
      if (!document.hidden && (!ticker.paused || after === null)) {
        const query = after === null ? { last: FIRST } : { after, limit: PAGE };
        try {
          const page = await dispatcher.get<RunLog>(["tasks", id, "log"], { attempt, ...query });
          if (left) return;
          after = page.after;
          setLooked((was) => ({
            lines: [...was.lines, ...page.lines].slice(-LINES_MAX),
            running: page.running,
            loaded: true,
            problem: null,
          }));
          wait = page.more ? 0 : page.running ? PERIOD_MS : null;
        } catch (error) {
          if (left) return;
          const problem = problemOf(error);
          setLooked((was) => ({ ...was, problem }));
          if (problem.kind === "missing") wait = null;
        }
      }
      if (!left && wait !== null) timer = setTimeout(() => void look(), wait);
    };
    void look();
    return () => {
      left = true;
      if (timer !== null) clearTimeout(timer);
    };
  }, [dispatcher, id, attempt, whole]);
  return looked;
}

function Lines({ lines }: { lines: LogLine[] }): JSX.Element {
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  // Stays at the end while lines come, unless somebody has scrolled away from it.
  useEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  return (
    <pre
      ref={box}
      tabIndex={0}
      class="block log"
      role="log"
      aria-label="Log"
      onScroll={(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        atEnd.current = scrollHeight - scrollTop - clientHeight < 24;
      }}
    >
      {lines.map((line, at) => (
        <Line key={line.n} line={line} missing={at === 0 ? 0 : line.n - lines[at - 1]!.n - 1} />
      ))}
    </pre>
  );
}

function Line({ line, missing }: { line: LogLine; missing: number }): JSX.Element {
  const origin = line.level === null ? line.stream : `${line.level} ${line.logger}`;
  const bad = line.level === "error" || line.level === "critical" || line.level === "fatal";
  return (
    <>
      {missing > 0 && <span class="quiet">{`… ${plural(missing, "line")} not kept …\n`}</span>}
      <span class="quiet">{`${line.at.slice(11, 23)}  ${origin}  `}</span>
      <span class={bad ? "s-failed" : undefined}>{`${line.text}\n`}</span>
    </>
  );
}
