"""The pipeline of ``pipeline.yaml``, declared in Python: ``qo up examples/flights/in_python.py`` runs it."""

import flights

import qo

LANDING = ".qo/landing"
CSV = {"format": "csv", "options": {"header": True}}

pipeline = qo.Pipeline(
    "flights",
    description="Departures from New York in 2013, and how late they were.",
    max_attempts=3,
    timeout_seconds=300,
)

raw = pipeline.files(
    f"{LANDING}/flights/*.csv",
    source="departures",
    partition={"kind": "day", "timezone": "America/New_York", "start": "2013-01-01"},
    poll_seconds=1,
    columns="date date, dep_time int, sched_dep_time int, dep_delay int, arr_delay int, carrier string, flight int, "
    "tailnum string, origin string, dest string, air_time int, distance int, time_hour timestamp",
)

catalogue = pipeline.source(flights.catalogue, kind="always_on", config={"path": f"{LANDING}/reference"})
tables = pipeline.job(flights.tables, inputs=[catalogue], outputs=3, config={"path": f"{LANDING}/reference"})
hours = "origin string, time_hour timestamp, temp double, wind_speed double, precip double, visib double"
weather = pipeline.ingest(tables, columns=hours, unique_key=["origin", "time_hour"], **CSV)
types = "tailnum string, built int, manufacturer string, model string, seats int"
planes = pipeline.ingest(pipeline.input(tables, output=1), columns=types, unique_key=["tailnum"], **CSV)
places = "faa string, name string, lat double, lon double"
airports = pipeline.ingest(pipeline.input(tables, output=2), columns=places, unique_key=["faa"], **CSV)

pipeline.table(
    flights.clean,
    config={"late_minutes": 15},
    expect=[
        qo.not_null("day", "scheduled_hour", "carrier", "origin", "dest"),
        qo.accepted("origin", ["EWR", "JFK", "LGA"]),
        qo.range("distance", 10, 6000),
        qo.rows(100, 2000),
        qo.range("dep_delay", min=-60, severity="warn", name="hardly anything leaves an hour early"),
    ],
)
enriched = pipeline.table(flights.enriched, inputs=["clean"], side=[weather, planes, airports], publish="flights")
daily = pipeline.sql("daily.sql", inputs={"flights": enriched}, publish="daily_delays")

monthly = pipeline.sql(
    "SELECT * FROM daily",
    inputs=[daily],
    partition={"kind": "month", "timezone": "America/New_York"},
    expect=[qo.unique("day", "origin", "carrier")],
)
compacted = pipeline.add("compacted", operator="compact", inputs=[monthly])
alerts = pipeline.add("alerts", operator="alert", inputs=[compacted], config={"file": "alerts.sql"})
pipeline.publish("monthly_delays", compacted)
pipeline.publish("delay_alerts", alerts)
