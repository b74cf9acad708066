/** A word on what was done, where it stays when the button that did it is gone. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

const SHOWN_MS = 7000;

let tell: ((text: string) => void) | null = null;

export function say(text: string): void {
  tell?.(text);
}

export function Notice(): JSX.Element {
  const [text, setText] = useState("");
  useEffect(() => {
    tell = setText;
    return () => {
      tell = null;
    };
  }, []);
  useEffect(() => {
    const timer = text ? setTimeout(() => setText(""), SHOWN_MS) : undefined;
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div role="status" class={text ? "notice" : ""}>
      {text}
    </div>
  );
}
