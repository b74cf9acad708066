/**
 * The store's clock, learned from the Date of replies that were made anyway: each says which second it was at the
 * store at some moment between sending and receiving. Our own wall clock serves only until the first reply.
 */

const CLOCK_SET_S = 2;

export class StoreTime {
  private low = Number.NEGATIVE_INFINITY;
  private high = Number.POSITIVE_INFINITY;

  constructor(
    private readonly monotonic: () => number = () => (performance.timeOrigin + performance.now()) / 1000,
  ) {}

  get known(): boolean {
    return Number.isFinite(this.low);
  }

  mark(): number {
    return this.monotonic();
  }

  observe(sent: number, dateHeader: string | null): void {
    const second = dateHeader ? Date.parse(dateHeader) / 1000 : Number.NaN;
    if (Number.isNaN(second)) return;
    const [low, high] = [second - this.monotonic(), second + 1 - sent];
    const narrowed = [Math.max(low, this.low), Math.min(high, this.high)] as const;
    // A reply that contradicts the others: the machine slept, or a clock was set. The latest word counts.
    [this.low, this.high] = narrowed[0] <= narrowed[1] + CLOCK_SET_S / 1000 ? narrowed : [low, high];
  }

  /** Seconds since 1970. */
  now(): number {
    return this.monotonic() + (this.known ? (this.low + this.high) / 2 : 0);
  }

  /** Microseconds since 1970, as times are stored. */
  nowUs(): number {
    return Math.round(this.now() * 1e6);
  }
}
