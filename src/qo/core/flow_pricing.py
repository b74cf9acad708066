"""What order, dependencies and uniqueness cost beside the task itself.

Removed hints are not counted: they go in batches, as those of any task.
"""

from __future__ import annotations

from qo.core.pricing import Operation, Requests


def requests_per_grouped_task() -> Requests:
    """Return the requests for a task with others before it in its group."""
    return {
        Operation.PUT: 5,  # Submit: the end of the line, its place, its predecessor. End: its successor and its hint.
        Operation.GET: 7,  # Submit: the end of the line, itself, its predecessor at each step. End: its successor.
    }


def requests_per_dependency() -> Requests:
    """Return the requests for each task that a task depends on, if it was submitted before."""
    return {
        Operation.PUT: 3,  # Submit: the dependency. End of it: the dependent, and its ready hint.
        Operation.GET: 3,  # Submit: the dependency, twice. End of it: the dependent.
    }


def requests_per_dependency_in_flow() -> Requests:
    """Return the requests for each dependency within a flow: all is known when its tasks are written."""
    return {Operation.PUT: 2, Operation.GET: 1}


def requests_per_unique_task(*, existing: bool) -> Requests:
    """Return the requests for a unique task beside the task itself; ``existing``: another one stands for it."""
    return {Operation.GET: 2} if existing else {Operation.GET: 2, Operation.PUT: 1}
