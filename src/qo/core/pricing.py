"""The prices of requests: used by the meter, and by the model behind `qo cost` (``core.cost_model``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

# Amazon S3 Standard, us-east-1, US dollars: https://aws.amazon.com/s3/pricing/ as of November 2026.
WRITE_PRICE = 0.005 / 1000  # PUT, COPY, POST, LIST
READ_PRICE = 0.0004 / 1000  # GET, HEAD and all others
STORAGE_PRICE_GB_MONTH = 0.023

DAY_S = 86_400
MONTH_D = 30


class Operation(StrEnum):
    """The kinds of request that a store makes. A refused request (404, 409, 412) costs as much as another."""

    GET = "get"
    HEAD = "head"
    PUT = "put"
    DELETE = "delete"
    DELETE_MANY = "delete_many"
    LIST = "list"
    VERSIONS = "versions"
    VERSIONING = "versioning"

    @property
    def price(self) -> float:
        """US dollars for one request."""
        return _PRICES[self]


_PRICES = {
    Operation.GET: READ_PRICE,
    Operation.HEAD: READ_PRICE,
    Operation.PUT: WRITE_PRICE,
    Operation.DELETE: 0.0,
    # A POST on the wire. Deletes are free, but the price list does not name this one, so we err high.
    Operation.DELETE_MANY: WRITE_PRICE,
    Operation.LIST: WRITE_PRICE,
    Operation.VERSIONS: WRITE_PRICE,
    Operation.VERSIONING: READ_PRICE,
}

Requests = Mapping[Operation, float]


def dollars(counts: Requests) -> float:
    return sum(count * operation.price for operation, count in counts.items())


def multiply(requests: Requests, factor: float) -> Requests:
    return {operation: count * factor for operation, count in requests.items()}


def add(one: Requests, other: Requests) -> Requests:
    return {each: total for each in Operation if (total := one.get(each, 0.0) + other.get(each, 0.0))}
