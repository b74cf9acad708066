"""Kinds of text that several fields have in common."""

from __future__ import annotations

from qo.pipeline.kinds import Text
from qo.pipeline.query_tables import CHARS_MAX

NAME = Text("lower-case letters, digits and _, beginning with a letter, at most 128", "[a-z][a-z0-9_]{0,127}", 128)
OUTPUT_NAME = Text("a job, or one of its outputs as in tables.1", r"[a-z][a-z0-9_]{0,127}(\.[0-9]{1,3})?", 132)
QUERY = Text("a query in Spark SQL", chars_max=CHARS_MAX)
QUEUE = Text(
    "lower-case letters, digits, _ and -, beginning with a letter, at most 63", "[a-z][a-z0-9_-]{0,62}", 63
)
TABLE = Text("a table, or schema.table, of lower-case letters, digits and _", r"[a-z0-9_]+(\.[a-z0-9_]+)?", 127)
SINK_FILE = Text(
    "a path such as prices/{partition}.csv, of letters, digits and . _ = + - and the words {partition} and {number}",
    r"[^\s]+",
    200,
)
COLUMN = Text("the name of a column", chars_max=200)
LINE = Text("text", chars_max=2_000)
LOGICAL = Text("letters, digits and . _ -, beginning with a letter", r"[A-Za-z][A-Za-z0-9_.-]{0,99}", 100)
ZONE = Text("a time zone such as Europe/Berlin", r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", 64)
HOOK = Text("words of a-z, 0-9, _ and - with / between them, such as orders/new", r"/?[a-z0-9_-]+(/[a-z0-9_-]+)*")
SPAN = Text(
    'never, 0, or a time such as 30s, 5m or 2h (in quotes: "5m")', "never|0|[1-9][0-9]{0,6}[smh]", 16, True
)
AGE = Text("a time such as 90s, 15m, 6h or 2d", "[1-9][0-9]{0,6}[smhd]", 16)
WEEKDAYS = Text(
    "days of the week, as in MON-FRI or MON,WED",
    "(MON|TUE|WED|THU|FRI|SAT|SUN)(-(MON|TUE|WED|THU|FRI|SAT|SUN))?"
    "(,(MON|TUE|WED|THU|FRI|SAT|SUN)(-(MON|TUE|WED|THU|FRI|SAT|SUN))?)*",
    60,
)
PARTITION = Text("a partition key: letters, digits and . _ = : + -", r"[A-Za-z0-9][A-Za-z0-9_.=:+-]{0,199}", 200)
BUNDLE = Text("letters, digits and . _ : -", r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
FILE_URL = Text(
    "an http:// or https:// address without user name and password", r"https?://[^\s/@?#]+([/?#]\S*)?", 2_000
)
URL = Text("an http:// or https:// address", r"https?://\S+", 2_000)
