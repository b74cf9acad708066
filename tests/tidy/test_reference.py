"""The reference pages say what the code does."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import msgspec
import pytest

from qo.agent.operator_run import Run, RunInput, RunOutput
from qo.api.contract.task import Outcome
from qo.api.internal_client import DispatcherClient
from qo.asgi import error_responses
from qo.core.task import RetryPolicy, Status, Task
from qo.pipeline.declare import Pipeline

pytestmark = pytest.mark.fast

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGE = (REFERENCE / "task-format.md").read_text()


def test_every_field_of_the_task_is_documented_and_no_other():
    documented = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Beside it")[0], re.MULTILINE)
    assert documented == [field.encode_name for field in msgspec.structs.fields(Task)]


def test_every_status_and_retry_field_is_documented():
    for name in [*Status, *(field.name for field in msgspec.structs.fields(RetryPolicy))]:
        assert f"`{name}`" in PAGE


@pytest.mark.parametrize(("listener", "heading"), [("public", "public"), ("internal", "internal")])
def test_every_route_is_documented_with_who_may_call_it_and_how_it_is_refused(listener: str, heading: str):
    page = (REFERENCE / "http.md").read_text().partition(f"## The {heading} listener")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([A-Z]+ \S+)` \| (\w+) \|.*\| ([0-9, ]*) ?\|$", page, re.MULTILINE)
    documented = {route: (needs, set(re.findall(r"\d+", also))) for route, needs, also in rows}
    described = json.loads((REFERENCE / f"openapi/{listener}.json").read_text())["paths"]
    everywhere = {"400", "401", "403", "413", "422", "503"}
    expected = {
        f"{method.upper()} {path}": (
            operation["x-qo-needs"],
            {status for status in operation["responses"] if status >= "400"} - everywhere,
        )
        for path, methods in described.items()
        for method, operation in methods.items()
    }
    assert documented == expected


def test_every_route_of_the_queue_is_documented_with_who_may_call_it() -> None:
    page = (REFERENCE / "http.md").read_text().partition("## The queue\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([A-Z]+ \S+)` \| ([\w, ]+) \|.*\| ([0-9, ]*) ?\|$", page, re.MULTILINE)
    documented = {route: (needs, set(re.findall(r"\d+", also))) for route, needs, also in rows}
    everywhere = {"400", "401", "403", "413", "429", "503"}
    expected = {
        f"{method.upper()} {path}": (
            operation["x-qo-needs"],
            {status for status in operation["responses"] if status >= "400"} - everywhere,
        )
        for path, methods in json.loads((REFERENCE / "openapi/queue.json").read_text())["paths"].items()
        for method, operation in methods.items()
    }
    assert documented == expected


def test_every_code_of_an_error_and_every_outcome_is_documented():
    page = (REFERENCE / "http.md").read_text()
    for code in [
        *(code for code, _, _ in error_responses.KINDS),
        error_responses.USAGE,
        error_responses.INVALID,
        *error_responses._CODES.values(),
        *Outcome,
    ]:
        assert f"`{code}`" in page


@pytest.mark.parametrize("kind", [Pipeline, Run, RunInput, RunOutput, DispatcherClient])
def test_every_public_name_of_pipelines_is_documented(kind: type):
    page = (REFERENCE / "python.md").read_text().partition("## Pipelines")[2]
    own = {name for name in vars(kind) if not name.startswith("_")} - {"committed", "body", "close"}
    if kind in (Run, RunInput, RunOutput):
        own |= set(re.findall(r"self\.([a-z]\w*)(?:: [^=]+)? =", inspect.getsource(kind.__init__))) - {
            "result",
            "skipped",
        }
    missing = {name for name in own if not re.search(rf"\b{name}\b", page)}
    assert missing == set()


def test_every_link_between_pages_leads_somewhere():
    root = REFERENCE.parents[1]
    broken: list[str] = []
    for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if "://" in link or (target.exists() and (not anchor or anchor in anchors(target))):
                continue
            broken.append(f"{page.relative_to(root)}: {link}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, as GitHub calls them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
