/** Jobs in the order of their data: each after those that it reads, and by name where nothing else decides. */

export function namesInOrder(jobs: { name: string; reads: string[] }[]): string[] {
  const byName = new Map(jobs.map((job) => [job.name, job]));
  const ordered: string[] = [];
  const entered = new Set<string>();
  const visit = (name: string): void => {
    if (entered.has(name)) return;
    entered.add(name);
    for (const read of byName.get(name)!.reads) {
      const from = read.replace(/\[\d+\]$/, "");
      if (byName.has(from)) visit(from);
    }
    ordered.push(name);
  };
  for (const name of [...byName.keys()].sort()) visit(name);
  return ordered;
}
