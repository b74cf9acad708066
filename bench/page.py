"""Render docs/benchmarks.md from the results of the suites. Only the advice when to pick another system, and
what bounds a drain, are typed in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.harness import RESULTS, text

PAGE = RESULTS.parent.parent / "docs" / "benchmarks.md"
SUITES = {
    "queue": "The queue",
    "worker": "The worker",
    "dispatcher": "The dispatcher",
    "spark": "Pipelines on Spark",
    "tables": "Tables",
}
# Systems that figures compare qo with, by a part of the figure's name.
PEERS = {
    "buquet": "buquet",
    "huey": "huey",
    "rq": "RQ",
    "celery": "Celery",
    "dramatiq": "Dramatiq",
    "dagster": "Dagster",
    "prefect": "Prefect",
}
WHEN = {
    "huey": "Pick huey for many tiny tasks on one machine if a power cut may lose the latest ones: without flushing "
    "to the disk it is several times as fast. With the same durability, two workers of qo are nearly twice as fast.",
    "dramatiq": "Pick Dramatiq if you run Redis or RabbitMQ anyway, tasks are tiny plain functions, and throughput "
    "matters on a single process: it is faster than one process of qo, and slower than two. Tasks that it had fetched "
    "when it was killed run late (see `late_after_kill9_dramatiq`), and a Redis without persistence loses all "
    "tasks in a restart.",
    "dagster": "Pick Dagster for one process that computes everything in one run, if you need its catalogue of assets "
    "and its integrations.",
    "prefect": "Pick Prefect for flows of plain Python calls, if no result has to be recorded exactly once.",
}
INTRO = """\
# Benchmarks

`make bench` measures these figures on your machine and writes this page. Every comparison comes from one run on one
machine: the systems take turns, so that a slow moment affects all of them. A figure is the median of its rounds; the
spread is the lowest and the highest round. Ratios are qo divided by the other system. A missed target is listed below
and does not fail the build.
"""
# From a profile of each thread of a worker that drains 4,000 no-op tasks, on the machine of the figures.
BOUNDS = """\
## What bounds a drain

On the embedded store, a no-op task takes about 0.18 ms of CPU time in a worker of 64 slots, with disk flushes or
without: 0.13 ms in the thread of the event loop, 0.05 ms in that of SQLite. Both need the interpreter's lock, so within
one process they take turns. The profile of the event loop is flat: 600 calls for each task, of which none takes more
than a twentieth of the time.

| part | of the event loop's time |
| --- | ---: |
| claim: read the task, decide, encode, write | 33 % |
| settle: decide, encode, write, drop the hint | 23 % |
| run: context, layers, timeout, the handler | 17 % |
| asyncio: futures, callbacks, waking the store | 12 % |
| look: list and order candidates | 7 % |
| slots, counters | 8 % |

| statement in SQLite | microseconds |
| --- | ---: |
| read a task | 4 |
| claim: append its version, point its key there | 17 |
| complete: the same | 17 |
| drop its hint | 8 |

Two processes run their event loops side by side and take turns in SQLite, which has one writer: its part is what more
processes cannot share. A hundred requests share a transaction and its flush, which on a busy disk still takes half of
the time that a process holds the write lock. huey flushes for each task and does less for it: a row is deleted, and
there is no state, lease or history of a task that runs. On S3, requests and their latency bound a drain
(`share_of_store_limit`).
"""


def written() -> str:
    """Write the page and return its path."""
    page = render(
        {name: json.loads(path.read_text()) for name in SUITES if (path := RESULTS / f"{name}.json").exists()}
    )
    PAGE.write_text(page)
    return str(PAGE)


def render(suites: Mapping[str, Mapping[str, Any]]) -> str:
    figures = [each for suite in suites.values() for each in suite["figures"]]
    parts = [INTRO, *_machines(suites), *_losses(figures), *_missed(figures), BOUNDS]
    for name, suite in suites.items():
        parts += _suite(SUITES[name], suite["figures"])
    return "\n".join(parts)


def _machines(suites: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    machines = {when: machine for suite in suites.values() for when, machine in suite["machines"].items()}
    yield "## Machines\n"
    for when, on in sorted(machines.items()):
        packages = ", ".join(f"{name} {version}" for name, version in on["packages"].items())
        yield (
            f"- {when}: {on['processor']}, {on['cores']} cores, {on['memory_gib']:g} GiB; {on['system']}, "
            f"Python {on['python']}, SQLite {on['sqlite']}; {packages}"
        )
    yield ""


def _losses(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the figures in which another system was better, with advice when to pick it."""
    lost = [each for each in figures if _peer(each) and _behind(each)]
    yield "## Where others are better\n"
    if not lost:
        yield "Nowhere in these figures. Measure your own case.\n"
    for peer, title in PEERS.items():
        if rows := [each for each in lost if _peer(each) == peer]:
            yield f"**{title}.** {WHEN.get(peer, 'Pick it if these figures matter most to you.')}\n"
            for each in rows:
                yield (
                    f"- `{each['name']}`: {text(each['value'])} against {text(each['baseline'])} {each['unit']} "
                    f"({text(each['ratio'])} times)"
                )
            yield ""


def _missed(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Targets that were missed\n"
    missed = [each for each in figures if each["settings"].get("reached") is False]
    for each in missed:
        of = each["settings"]["target_of"]
        number = each["value"] if of == "value" else each["ratio"]
        yield f"- `{each['name']}`: {of} {text(number)}, should be {each['settings']['target']}"
    yield "" if missed else "None.\n"


def _suite(title: str, figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| figure | value | spread | compared | spread | ratio | target | |"
    yield "| --- | ---: | --- | ---: | --- | ---: | --- | --- |"
    for each in figures:
        said = each["settings"]
        target = f"{said['target_of']} {said['target']}" if "target" in said else ""
        verdict = {True: "reached", False: "**missed**", None: ""}[said.get("reached")]
        yield (
            f"| `{each['name']}` | {text(each['value'])} {each['unit']} | {_spread(each['runs'])} "
            f"| {text(each['baseline'])} | {_spread(each['baseline_runs'])} | {text(each['ratio'])} "
            f"| {target} | {verdict} |"
        )
    yield "\nConditions:\n"
    for names, said in _settings(figures).items():
        yield f"- {', '.join(f'`{name}`' for name in said)}: {names}"
    yield ""


def _settings(figures: Sequence[Mapping[str, Any]]) -> Mapping[str, list[str]]:
    """The names of figures by how they were taken."""
    found: dict[str, list[str]] = {}
    for each in figures:
        said = {
            name: value
            for name, value in each["settings"].items()
            if name not in ("target", "target_of", "reached")
        }
        how = "; ".join(f"{name.replace('_', ' ')}: {_plain(value)}" for name, value in said.items())
        found.setdefault(f"{how} ({each['on']})", []).append(each["name"])
    return found


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)


def _spread(runs: Sequence[float]) -> str:
    return f"{text(min(runs))} to {text(max(runs))}" if len(runs) > 1 else ""


def _peer(figure: Mapping[str, Any]) -> str | None:
    name: str = figure["name"]
    if figure["ratio"] is None or "_vs_" not in name:
        return None
    return next((peer for peer in PEERS if f"_vs_{peer}" in name), None)


def _behind(figure: Mapping[str, Any]) -> bool:
    """All these figures are rates: more is better."""
    return figure["ratio"] < 1
