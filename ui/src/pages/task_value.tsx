/** The input or output of a task. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { parseExact } from "../core/document";
import { sealedWith } from "../core/sealed";
import { Problem } from "../s3/problem";
import { useApp } from "../shell/app";
import { Failure, Panel } from "../show/states";
import { Copy } from "../show/text";
import { Tree } from "../show/tree";

/** A value of the task: in the task itself, or in an object of its own if it is large. */
export function Value({
  name,
  raw,
  place,
}: {
  name: string;
  raw: string | undefined;
  place: string | null;
}): JSX.Element {
  const { bucket } = useApp();
  const [fetched, setFetched] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const load = async (): Promise<void> => {
    try {
      const text = (await bucket.get(place!))?.text ?? "null";
      parseExact(text); // What is no JSON is told as a problem.
      setFetched(text);
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem("wrong", String(error)));
    }
  };
  const text = place === null ? raw : (fetched ?? undefined);
  const nothing = text === undefined || text === "null";
  const sealed = raw?.startsWith('"') ? sealedWith(JSON.parse(raw)) : null;
  if (sealed !== null)
    return (
      <Panel title={name}>
        <span class="quiet">encrypted with key {sealed}</span>
      </Panel>
    );
  return (
    <Panel title={name} right={!nothing && <Copy text={text} what={`the ${name.toLowerCase()}`} />}>
      {place !== null && fetched === null ? (
        <p>
          It is large and stored in a separate object.{" "}
          <button type="button" onClick={() => void load()}>
            Load it
          </button>
        </p>
      ) : nothing ? (
        <span class="quiet">none</span>
      ) : (
        <Tree value={parseExact(text)} />
      )}
      {problem && <Failure problem={problem} />}
    </Panel>
  );
}
