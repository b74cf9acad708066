/** Failed tasks grouped by what went wrong: errors that differ only in ids, numbers and quoted values are one. */

export interface Failed {
  id: string;
  task_type: string;
  last_error: string | null;
  updated_at: string;
}

export interface Group<T extends Failed> {
  signature: string;
  taskType: string;
  example: string;
  tasks: T[]; // The last one first.
}

/** What an error says once everything that varies from task to task is left out. */
export function signatureOf(error: string | null): string {
  const first = (error ?? "").split("\n").find((line) => line.trim()) ?? "";
  const plain = first
    .trim()
    .replace(/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/gi, "…")
    .replace(/(["'`])(?:\\.|(?!\1).)*\1/g, "…")
    .replace(/\b0x[0-9a-f]+\b/gi, "…")
    .replace(/\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b/gi, "…")
    .replace(/\d+(?:[.,:]\d+)*/g, "…")
    .replace(/\s+/g, " ");
  return plain || "no error was recorded";
}

/** The largest group first. */
export function grouped<T extends Failed>(tasks: Iterable<T>): Group<T>[] {
  const groups = new Map<string, Group<T>>();
  for (const task of tasks) {
    const signature = signatureOf(task.last_error);
    const key = `${task.task_type}\n${signature}`;
    const group = groups.get(key);
    if (group) group.tasks.push(task);
    else groups.set(key, { signature, taskType: task.task_type, example: task.last_error ?? "", tasks: [task] });
  }
  const all = [...groups.values()];
  for (const group of all) {
    group.tasks.sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
    group.example = group.tasks[0]!.last_error ?? "";
  }
  return all.sort((a, b) => b.tasks.length - a.tasks.length || (a.signature < b.signature ? -1 : 1));
}
