/** Cron schedules: what is submitted, when, and what became of the last run. */

import type { JSX } from "preact";
import { nextRun } from "../core/cron";
import { SCHEDULES } from "../core/keys";
import { misfit } from "../core/shape";
import type { Bucket } from "../s3/client";
import { useApp } from "../shell/app";
import { useLive, useSecond } from "../shell/ticker";
import { Badge } from "../show/badge";
import { Head } from "../show/head";
import { Empty, Panel, Shown } from "../show/states";
import { Ago, TaskLink } from "../show/text";

interface Schedule {
  name: string;
  task_type: string;
  cron: string;
  timezone: string;
  enabled: boolean;
  catch_up: string;
  overlap: string;
  last_run_at: string | null;
  last_task_id: string | null;
  active_since: string;
}

const shelves = new WeakMap<Bucket, Map<string, { etag: string; schedule: Schedule | null }>>();

const LISTS_MAX = 5;

/** All schedules, up to 5,000: a LIST for each thousand, and a GET for each that changed. */
async function lookSchedules(bucket: Bucket): Promise<Schedule[]> {
  const kept = shelves.get(bucket) ?? new Map<string, { etag: string; schedule: Schedule | null }>();
  shelves.set(bucket, kept);
  const page = await bucket.listAll(SCHEDULES, LISTS_MAX);
  await Promise.all(
    page.entries.map(async (entry) => {
      if (kept.get(entry.key)?.etag === entry.etag || !entry.key.endsWith(".json")) return;
      const stored = await bucket.get(entry.key);
      let schedule: Schedule | null = null;
      try {
        const found = stored && { ...DEFAULTS, ...(JSON.parse(stored.text) as Schedule) };
        schedule = found && isSchedule(found) ? found : null;
      } catch {
        // Left out: the command line says what is wrong with it.
      }
      kept.set(entry.key, { etag: entry.etag, schedule });
    }),
  );
  return page.entries.flatMap((entry) => kept.get(entry.key)?.schedule ?? []);
}

const DEFAULTS = {
  timezone: "UTC",
  enabled: true,
  catch_up: "last",
  overlap: "allow",
  last_run_at: null,
  last_task_id: null,
};

function isSchedule(found: Schedule): boolean {
  const texts = [found.name, found.task_type, found.cron, found.active_since];
  return texts.every((each) => typeof each === "string") && misfit(found, DEFAULTS) === null;
}

export function SchedulesPage(): JSX.Element {
  const { bucket } = useApp();
  const live = useLive(() => lookSchedules(bucket), []);
  useSecond();
  return (
    <>
      <header class="head">
        <h1>Schedules</h1>
      </header>
      <Shown live={live} what="schedules">
        {(schedules) => (
          <Panel flush>
            {schedules.length === 0 ? (
              <Empty title="No schedules">
                Create one: <code>qo schedule create NAME --type TYPE --cron "0 9 * * *"</code>
              </Empty>
            ) : (
              <table class="stack">
                <Head
                  columns={[
                    "schedule",
                    "state",
                    "type",
                    "cron",
                    "next run",
                    "last run",
                    "last task",
                    "missed runs, overlap",
                  ]}
                />
                <tbody>
                  {schedules.map((each) => (
                    <tr key={each.name}>
                      <td>{each.name}</td>
                      <td>
                        <Badge status={each.enabled ? "enabled" : "disabled"} />
                      </td>
                      <td class="cut">{each.task_type}</td>
                      <td class="nowrap">
                        <code>{each.cron}</code> <span class="quiet">{each.timezone}</span>
                      </td>
                      <td>
                        <Next schedule={each} now={bucket.time.now()} />
                      </td>
                      <td>{each.last_run_at ? <Ago at={each.last_run_at} /> : <span class="quiet">never</span>}</td>
                      <td>{each.last_task_id && <TaskLink id={each.last_task_id} />}</td>
                      <td class="quiet">
                        {each.catch_up}, {each.overlap}
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
          </Panel>
        )}
      </Shown>
    </>
  );
}

function Next({ schedule, now }: { schedule: Schedule; now: number }): JSX.Element {
  if (!schedule.enabled) return <span class="quiet">not while disabled</span>;
  const at = nextRun(schedule.cron, schedule.timezone, new Date(now * 1000));
  return at ? <Ago at={at.toISOString()} /> : <span class="quiet">unknown</span>;
}
