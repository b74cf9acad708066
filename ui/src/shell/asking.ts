/** The way from a refused request back to the gate, which alone has the credentials. */

import type { Problem } from "../s3/problem";

let back: ((problem: Problem) => void) | null = null;

export function onAsking(listener: (problem: Problem) => void): () => void {
  back = listener;
  return () => {
    back = null;
  };
}

export function askForCredentials(problem: Problem): void {
  back?.(problem);
}
