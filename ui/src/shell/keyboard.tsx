/** Keys for people who stay on the keyboard. `?` shows them. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { go } from "./router";
import { openSearch } from "./search";
import { switchTheme } from "./theme";
import { ticker } from "./ticker";

const PLACES: Record<string, [string, string[]]> = {
  o: ["Overview of the queue", ["queue"]],
  t: ["Tasks", ["tasks"]],
  f: ["Failures", ["failures"]],
  s: ["Shards", ["shards"]],
  w: ["Workers", ["workers"]],
  c: ["Schedules", ["schedules"]],
  p: ["Pipelines", ["pipelines"]],
  d: ["Datasets", ["datasets"]],
  r: ["Runs", ["runs"]],
  y: ["Why?", ["why"]],
  q: ["Quality", ["quality"]],
  a: ["Backfills", ["backfills"]],
  b: ["Backpressure", ["backpressure"]],
};

export function Keyboard(): JSX.Element | null {
  const [help, setHelp] = useState(false);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    let leader = Number.NEGATIVE_INFINITY; // When `g` was pressed. Not 0: that is when the page was loaded.
    const pressed = (event: KeyboardEvent): void => {
      const target = event.target instanceof Element ? event.target : document.body;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog"))
        return;
      if (performance.now() - leader < 1200 && PLACES[event.key]) {
        leader = Number.NEGATIVE_INFINITY;
        go(PLACES[event.key]![1]);
      } else if (event.key === "g") leader = performance.now();
      else if (event.key === "r") void ticker.round();
      else if (event.key === "p") ticker.toggle();
      else if (event.key === "l") switchTheme();
      else if (event.key === "?") setHelp(true);
      else if (event.key === "/" && openSearch()) event.preventDefault();
      else if (event.key === "/" || event.key === "f") {
        const field = document.querySelector<HTMLInputElement>("input[data-find]");
        if (!field) return;
        field.focus();
        event.preventDefault();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  useEffect(() => {
    if (help) dialog.current?.showModal();
  }, [help]);
  if (!help) return null;
  return (
    <dialog ref={dialog} onClose={() => setHelp(false)} aria-labelledby="keys">
      <form method="dialog">
        <h1 id="keys">Keys</h1>
        <dl class="facts">
          {Object.entries(PLACES).map(([key, [name]]) => (
            <>
              <dt>
                <kbd>g</kbd> <kbd>{key}</kbd>
              </dt>
              <dd>{name}</dd>
            </>
          ))}
          <dt>
            <kbd>/</kbd>
          </dt>
          <dd>Search everything</dd>
          <dt>
            <kbd>f</kbd>
          </dt>
          <dd>Find on this page</dd>
          <dt>
            <kbd>r</kbd> <kbd>p</kbd>
          </dt>
          <dd>Refresh now; pause or resume refreshing</dd>
          <dt>
            <kbd>l</kbd>
          </dt>
          <dd>Light or dark</dd>
        </dl>
        <div class="buttons">
          <button type="submit">Close</button>
        </div>
      </form>
    </dialog>
  );
}
