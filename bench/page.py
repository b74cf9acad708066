"""docs/benchmarks.md, made of what the suites have written. Only when to pick somebody else is typed in."""

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
}
# Figures whose ratio compares qo with another system, by what their names end on or hold.
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
    "huey": "Pick huey for many tiny tasks on one machine when a power cut may cost the last of them: with the disk's "
    "flush switched off it is several times as fast. With the same promise as qo's it is about as fast.",
    "dramatiq": "Pick Dramatiq when you run Redis or RabbitMQ anyway, tasks are tiny and plain functions, and it is "
    "rate that counts: its processes share two cores better than one process of qo does. What it had fetched "
    "when it was killed comes back late (see `late_after_kill9_dramatiq`), and a Redis without persistence "
    "keeps nothing through a restart.",
    "dagster": "Pick Dagster for one process that computes everything in one run, when what is wanted is its catalogue "
    "of assets and its integrations.",
    "prefect": "Pick Prefect for flows that are plain Python calls, when nothing has to be recorded exactly once.",
}
INTRO = """\
# Benchmarks

Made by `make bench`, which measures on your machine what stands here and writes this page anew. Every comparison is of
one run on one machine: the sides take turns, so that a slow moment hits all of them. A figure is the median of its
rounds; the spread is the least and the most of them. Ratios are qo over the other side. Speed never fails a build: a
target that is missed is shown as missed.
"""


def written() -> str:
    """Write the page; what is on it."""
    page = render(
        {name: json.loads(path.read_text()) for name in SUITES if (path := RESULTS / f"{name}.json").exists()}
    )
    PAGE.write_text(page)
    return str(PAGE)


def render(suites: Mapping[str, Mapping[str, Any]]) -> str:
    figures = [each for suite in suites.values() for each in suite["figures"]]
    parts = [INTRO, *_machines(suites), *_losses(figures), *_missed(figures)]
    for name, suite in suites.items():
        parts += _suite(SUITES[name], suite["figures"])
    return "\n".join(parts)


def _machines(suites: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    machines = {when: machine for suite in suites.values() for when, machine in suite["machines"].items()}
    yield "## Where\n"
    for when, on in sorted(machines.items()):
        packages = ", ".join(f"{name} {version}" for name, version in on["packages"].items())
        yield (
            f"- {when}: {on['processor']}, {on['cores']} cores, {on['memory_gib']:g} GiB; {on['system']}, "
            f"Python {on['python']}, SQLite {on['sqlite']}; {packages}"
        )
    yield ""


def _losses(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where a peer was better, with what to make of it."""
    lost = [each for each in figures if _peer(each) and _behind(each)]
    yield "## Where others are better\n"
    if not lost:
        yield "Nowhere in these figures. Measure your own case.\n"
    for peer, title in PEERS.items():
        if rows := [each for each in lost if _peer(each) == peer]:
            yield f"**{title}.** {WHEN.get(peer, 'Pick it where this is what counts.')}\n"
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
    yield "| figure | value | spread | beside it | spread | ratio | target | |"
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
    yield "\nHow, and on what:\n"
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
