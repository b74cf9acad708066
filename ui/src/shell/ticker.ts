/**
 * One clock for all refreshes: a round every few seconds while somebody looks, none while the tab is hidden, and never
 * two at a time.
 */

import { useEffect, useRef, useState } from "preact/hooks";
import { type Problem, problemOf } from "../s3/problem";

export const PERIOD_S = 7;

type Look = () => Promise<void>;

class Ticker {
  private readonly looks = new Set<Look>();
  private readonly watchers = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | null = null;
  private running = false;
  private again = false;
  paused = false;
  lastRound: number | null = null; // When the last round ended, by performance.now().

  constructor() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : void this.round()));
  }

  add(look: Look): () => void {
    this.looks.add(look);
    // At once, whatever a round for the page before is still waiting for.
    void look().then(() => {
      this.lastRound = performance.now();
      this.tell();
      this.plan();
    });
    return () => this.looks.delete(look);
  }

  watch(told: () => void): () => void {
    this.watchers.add(told);
    return () => this.watchers.delete(told);
  }

  get busy(): boolean {
    return this.running;
  }

  /** Look now. A round that is under way is not repeated beside itself, but after it. */
  async round(): Promise<void> {
    this.stop();
    if (this.running) {
      this.again = true;
      return;
    }
    this.running = true;
    this.tell();
    do {
      this.again = false;
      await Promise.all([...this.looks].map((look) => look()));
    } while (this.again);
    this.running = false;
    this.lastRound = performance.now();
    this.tell();
    this.plan();
  }

  private plan(): void {
    if (this.running || this.paused || document.hidden) return;
    this.stop();
    this.timer = setTimeout(() => void this.round(), PERIOD_S * 1000);
  }

  toggle(): void {
    this.paused = !this.paused;
    if (this.paused) this.stop();
    else void this.round();
    this.tell();
  }

  private stop(): void {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
  }

  private tell(): void {
    for (const told of this.watchers) told();
  }
}

export const ticker = new Ticker();

export interface Live<T> {
  value: T | null;
  problem: Problem | null; // Of the last look. An older value may still be there: say that it is old.
  look: () => Promise<void>;
}

/** What `load` answers, asked again at every round and whenever `deps` change. */
export function useLive<T>(load: () => Promise<T>, deps: readonly unknown[]): Live<T> {
  const [state, setState] = useState<{ of: string; value: T | null; problem: Problem | null }>({
    of: "",
    value: null,
    problem: null,
  });
  const of = JSON.stringify(deps);
  const latest = useRef({ load, of });
  latest.current = { load, of };
  const look = useRef(async () => {
    const asked = latest.current;
    try {
      const value = await asked.load();
      if (latest.current.of === asked.of) setState({ of: asked.of, value, problem: null });
    } catch (error) {
      const problem = problemOf(error);
      if (latest.current.of === asked.of)
        setState((was) => ({ of: asked.of, value: was.of === asked.of ? was.value : null, problem }));
    }
  });
  // `of` is what changes when the question does.
  useEffect(() => ticker.add(look.current), [of]);
  const current = state.of === of;
  return { value: current ? state.value : null, problem: current ? state.problem : null, look: look.current };
}

/** Draws again every second: for countdowns and "3s ago". Costs no request. */
export function useSecond(): void {
  const [, again] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || again((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
}
