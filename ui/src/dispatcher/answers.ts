/** What the dispatcher answers: the fields that the pages show. docs/reference/openapi/public.json has them all. */

export interface DagLine {
  name: string;
  active: number | null;
  next: number | null;
  next_status: string | null;
  previous: number | null;
  jobs: number;
  paused: string | null;
  updated_at: string;
}

export interface JobLine {
  name: string;
  edition_id: string;
  activation: string;
  runtime: string;
  operator: string;
  queue: string;
  group?: string | null; // An older dispatcher does not say it.
  reads: string[];
  outputs: number;
  rebuilt: boolean;
  tasks: Record<string, number>;
  hold: string | null;
  paused: string | null;
  source: string | null;
  code: string | null;
  bundle: string | null; // Null: workers run their own code.
}

export interface VersionLine {
  dag: string;
  version: number;
  status: string;
  content_hash: string;
  created_at: string;
  created_by: string;
  activated_at: string | null;
}

export interface VersionShown extends VersionLine {
  active: number | null;
  paused: string | null;
  publish: Record<string, string>;
  jobs: JobLine[];
  source: string;
}

export interface Rebuild {
  version: number;
  status: string;
  jobs: string[];
  tasks: Record<string, number>;
  remaining: number;
  waiting: number;
  waits?: { job: string; reason: string }[]; // These three an older dispatcher does not send.
  blocked?: number;
  stuck?: boolean;
  caught_up: boolean;
}

export interface Cutover {
  version: number;
  status: string;
  changed: boolean;
  active: number | null;
  replaced: number | null;
  cancelled: number;
  cancel_requested: number;
}

export interface DatasetLine {
  id: string;
  dag: string;
  job: string;
  output: number;
  name: string | null;
  generation_id: string | null;
}

export interface Generation {
  id: string;
  edition_id: string;
  status: string;
  versions: number[];
  created_at: string;
  partitions: number;
  segments: number;
  rows: number;
  bytes: number;
  cursor: number | null;
}

export interface StaleInput {
  input: string;
  dataset: string;
  other_generation: boolean;
  partition_key: string | null;
  read_revision: number | null;
  revision: number | null;
  text: string;
}

export interface StaleCount {
  partitions: number;
  at_least: boolean;
}

/** A table outside that follows the dataset, and how far it is. */
export interface SinkState {
  name: string;
  is_current: boolean;
  error: string | null;
  text: string;
}

export interface FreshnessState {
  late_since: string | null;
  text: string;
}

export interface ColumnLine {
  name: string;
  type: unknown; // Spark's: a word, or an object of a nested type.
  nullable: boolean;
  since: string | null;
}

export interface ColumnEdge {
  depth: number;
  dataset: string;
  column: string | null;
  how: string;
}

export interface ColumnLineage {
  columns: { column: string; is_known: boolean; upstream: ColumnEdge[]; downstream: ColumnEdge[] }[];
  rows: ColumnEdge[];
  unknown: string[];
}

export interface DatasetShown {
  columns?: ColumnLine[] | null;
  freshness?: FreshnessState[];
  dataset: DatasetLine;
  generations: Generation[];
  readers: string[];
  events: Record<string, number>;
  stale?: StaleCount | null;
  sinks?: SinkState[];
}

export interface Partition {
  partition_key: string;
  start: number | null;
  end: number | null;
  revision: number;
  location: string | null;
  files: number;
  rows: number | null;
  bytes: number | null;
  task_id: string;
  committed_at: string;
  stale?: boolean;
  stale_inputs?: StaleInput[];
}

export interface Commit {
  revision: number;
  generation_id: string;
  partition_key: string | null;
  cursor: number | null;
  files: number;
  rows: number | null;
  bytes: number | null;
  task_id: string;
  attempt: number;
  committed_at: string;
  replaced_by: number | null;
}

export interface Delivery {
  dag: string | null;
  job: string | null;
  outcome: string;
  reason: string | null;
  task_id: string | null;
}

export interface EventLine {
  seq: number;
  id: string;
  cursor: number | null;
  partition_key: string | null;
  producer_task_id: string | null;
  received_at: string;
  state: string;
  reason: string | null;
  deliveries: Delivery[];
}

export interface LineageEdge {
  depth: number;
  dataset: string;
  partition_key: string | null;
  cursor_after: number | null;
  cursor_upto: number | null;
  revision: number | null; // Of the commit of that run.
  mode: string;
  as_of: number | null; // Of an input that was read whole or a range of: the state that was read.
  pieces: number | null;
  task_id: string; // Of an input that was read whole: the one that had committed to it last.
}

export interface Lineage {
  dataset: string;
  partition_key: string;
  revision: number;
  task_id: string;
  upstream: LineageEdge[];
  downstream: LineageEdge[];
  more: boolean;
}

export interface RunLine {
  id: string;
  dag: string;
  job: string;
  status: string;
  attempt: number;
  partition_key: string | null;
  cursor: number | null;
  worker_id: string | null;
  last_error: string | null;
  released: boolean;
  created_at: string;
  updated_at: string;
  superseded: { by_task: string | null; version: number | null; text: string } | null;
}

export interface LogLine {
  n: number; // Numbers that are missing were not kept.
  at: string;
  stream: string;
  text: string;
  level: string | null;
  logger: string | null;
}

export interface RunLog {
  attempt: number | null;
  running: boolean;
  lines: LogLine[];
  after: number;
  more: boolean;
}

export interface RunShown extends RunLine {
  operator: string;
  code: string | null;
  bundle: string | null; // Null: it runs the worker's own code.
  queue: string;
  edition_id: string;
  dedupe_key: string;
  dataset_id: string | null;
  available_at: string;
  lease_expires_at: string | null;
  timeout_seconds: number | null;
  retry_count: number;
  max_retries: number;
  rescheduled: number; // How often it has asked to come back later, if its last attempt did.
  reschedule_reason: string | null;
  traceback: string | null;
  cancel_requested: boolean;
  cancelled_by: string | null;
  cancel_reason: string | null;
  attributes: unknown;
  progress: unknown;
  output: unknown;
  started_at: string | null;
  completed_at: string | null;
  attempts: {
    attempt: number;
    worker_id: string | null;
    started_at: string;
    ended_at: string | null;
    outcome: string | null;
    error: string | null;
    code: string | null;
    packages: string[] | null;
  }[];
  inputs: {
    position: number;
    dataset_id: string;
    partition_key: string | null;
    revision: number | null;
    cursor_after: number | null;
    cursor_upto: number | null;
  }[];
  commits: {
    revision: number;
    dataset_id: string;
    partition_key: string | null;
    cursor: number | null;
    location: string | null;
    rows: number | null;
    bytes: number | null;
    replaced_by: number | null;
    committed_at: string;
  }[];
}

export interface WhyStep {
  kind: string;
  text: string;
  dataset: string | null;
  job: string | null;
  partition_key: string | null;
  task_id: string | null;
  at: string | null;
}

export interface Why {
  target: string;
  dataset: string;
  verdict: "there" | "under_way" | "blocked" | "unknown";
  steps: WhyStep[];
  blocked_by: string | null;
  do: string | null;
  stale?: boolean;
  stale_inputs?: StaleInput[];
}

export interface Check {
  dataset: string;
  partition_key: string | null;
  cursor: number | null;
  dag: string;
  job: string;
  task_id: string;
  attempt: number;
  position: number;
  name: string;
  kind: string;
  severity: string;
  passed: boolean;
  observed: unknown;
  expected: unknown;
  at: string;
}

export interface Rejection {
  dataset: string;
  partition_key: string | null;
  dag: string;
  job: string;
  task_id: string;
  attempt: number;
  location: string;
  rows: number | null;
  reason: string;
  at: string;
}

export interface QueueLine {
  name: string;
  runtime: string | null;
  unserved: string | null;
  depth: number;
  oldest_s: number;
  tripped_at: string | null;
  reason: string | null;
  measured_at: string;
}

/** A queue, or a job with thresholds of its own, as last measured. */
export interface PressureTarget {
  kind: "queue" | "job";
  name: string;
  runtime: string | null;
  unserved: string | null;
  depth: number;
  oldest_s: number;
  depth_max: number | null;
  age_max_s: number | null;
  tripped_at: string | null;
  reason: string | null;
  clears: string | null;
  works: string[];
  measured_at: string;
}

export interface HeldJob {
  edition_id: string;
  dag: string;
  job: string;
  version: number;
  active: boolean;
  kind: string | null;
  mode: string;
  since: string | null;
  reason: string;
  next: string;
  waiting: number;
}

export interface HeldAnswer {
  targets: PressureTarget[];
  held: HeldJob[];
  more: boolean;
}

export interface SourceLine {
  edition_id: string;
  dag: string;
  job: string;
  version: number;
  active: boolean;
  kind: string;
  config: Record<string, unknown>;
  paused: string | null;
  held: string | null;
  state: string;
  restarts: number;
  heard_at: string | null;
  last_error: string | null;
  task_id: string | null;
}

export interface PublishedHealth {
  name: string;
  dataset: string;
  committed_at: string | null;
  partitions: number;
  rows: number;
  bytes: number;
}

export interface PipelineHealth {
  name: string;
  active: number | null;
  next: number | null;
  next_status: string | null;
  paused: string | null;
  jobs: number;
  running: number;
  waiting: number;
  failed: number;
  held: number;
  late?: number; // An older dispatcher does not say it.
  sources: number;
  sources_failed: number;
  published: PublishedHealth[];
}

export type GridState = "done" | "running" | "waiting" | "failed";

export interface GridCell {
  key: string;
  state: GridState;
  committed_at: string | null;
  rows: number | null;
  task_id: string | null;
  since: string | null;
}

export interface GridRow {
  job: string;
  edition_id: string;
  cells: GridCell[];
}

export interface Grid {
  dag: string;
  version: number;
  keys: string[];
  rows: GridRow[];
  before: string | null;
  more_jobs: boolean;
}

export interface GridRange {
  first: string;
  last: string;
  keys: number;
  from_key: string | null;
  before: string | null;
}

export interface RangeCounts {
  job: string;
  edition_id: string;
  done: number[];
  running: number[];
  waiting: number[];
  failed: number[];
  at_least: boolean;
}

export interface GridRanges {
  dag: string;
  version: number;
  keys: number;
  ranges: GridRange[];
  rows: RangeCounts[];
  older: string | null;
  more_jobs: boolean;
}

export interface TimelineAttempt {
  attempt: number;
  started_at: string;
  ended_at: string | null;
  outcome: string | null;
  worker_id: string | null;
}

export interface TimelineTask {
  id: string;
  job: string;
  status: string;
  partition_key: string | null;
  cursor: number | null;
  created_at: string;
  available_at: string;
  completed_at: string | null;
  attempts: TimelineAttempt[];
}

export interface Timeline {
  now: string;
  tasks: TimelineTask[];
  before: string | null;
}

export interface EffortPeriod {
  begin: string;
  tasks: number;
  failed: number;
  attempts: number;
  median_s: number | null;
  p95_s: number | null;
  waited_s: number | null;
  worker_s: number;
}

export interface Effort {
  period_s: number;
  tasks: number;
  more: boolean;
  periods: EffortPeriod[];
}

export interface SearchHit {
  kind: string;
  name: string;
  about: string;
  dag: string | null;
  job: string | null;
  task_id: string | null;
  dataset: string | null;
  partition_key: string | null;
}

export interface SearchAnswer {
  hits: SearchHit[];
  more: boolean;
}

export interface Backfill {
  id: string;
  dag: string;
  job: string;
  from_key: string | null;
  to_key: string | null;
  at_once: number;
  state: "running" | "paused" | "done" | "cancelled";
  live: boolean;
  made: number;
  left: number;
  tasks: Record<string, number>;
  missing: string[];
  created_at: string;
  created_by: string;
  ended_at: string | null;
}

export interface ColumnStatistics {
  name: string;
  type: unknown;
  rows: number;
  nulls: number | null;
  null_share: number | null;
  distinct: number | null;
  least: string | null;
  greatest: string | null;
  least_shortened: boolean;
  greatest_shortened: boolean;
  bytes: number | null;
}

export interface ColumnStatisticsAnswer {
  revision: number | null;
  columns: ColumnStatistics[] | null;
  pieces: number;
  measured: number;
  rows: number;
  complete: boolean;
}

export interface TrendPoint {
  revision: number | null;
  partition_key: string | null;
  cursor: number | null;
  at: string;
  task_id: string;
  attempt: number;
  rows: number | null;
  bytes: number | null;
  nulls: number | null;
  passed: number;
  warned: number;
  failed: number;
  rejected: number;
  rejected_rows: number | null;
  replaced: boolean;
}

export interface Trend {
  by: "commit" | "partition";
  points: TrendPoint[];
  expectations: { name: string; kind: string; severity: string; passed: number; violated: number }[];
  next: string | null;
}
