"""What the machine can do at most: transactions that write the rows of a task's life, and do nothing else.

As pgbench would: some clients, each with a connection, one transaction to create a task, one to claim and one to
complete it, every statement prepared, and each transaction sent in one piece.
"""

from __future__ import annotations

import threading
import time

import psycopg

CLIENTS = 8
SECONDS = 5.0

_TABLES = """
CREATE TABLE l_events (seq bigserial PRIMARY KEY, id text UNIQUE, key text, state text, at timestamptz);
CREATE TABLE l_deliveries (seq bigint, edition text, task_id text, outcome text, PRIMARY KEY (seq, edition));
CREATE TABLE l_tasks (id text PRIMARY KEY, edition text, key text, status text, token text, attempt int,
    lease text, body text, at timestamptz, released timestamptz, UNIQUE (edition, key));
CREATE INDEX ON l_tasks (edition, status, at);
CREATE INDEX ON l_tasks (status, at);
CREATE TABLE l_outbox (seq bigserial PRIMARY KEY, id text UNIQUE, task_id text, state text, at timestamptz);
CREATE TABLE l_attempts (task_id text, attempt int, lease text, began timestamptz, ended timestamptz,
    PRIMARY KEY (task_id, attempt));
CREATE TABLE l_inputs (task_id text, position int, key text, revision bigint, PRIMARY KEY (task_id, position));
CREATE TABLE l_commits (revision bigserial PRIMARY KEY, key text, location text, task_id text, at timestamptz);
CREATE INDEX ON l_commits (key, revision);
CREATE TABLE l_partitions (key text PRIMARY KEY, revision bigint, location text, task_id text, at timestamptz);
"""
_CREATE = (
    "INSERT INTO l_events (id, key, state, at) VALUES (%(id)s, %(id)s, 'routed', now())",
    "INSERT INTO l_tasks VALUES (%(id)s, 'e', %(id)s, 'pending', 'a', 0, NULL, repeat('x', 300), now(), now())",
    "INSERT INTO l_deliveries VALUES (currval('l_events_seq_seq'), 'e', %(id)s, 'consumed')",
    "INSERT INTO l_outbox (id, task_id, state, at) VALUES (%(id)s, %(id)s, 'done', now())",
)
_CLAIM = (
    "UPDATE l_tasks SET status = 'running', token = 'b', attempt = 1, lease = 'l' WHERE id = %(id)s",
    "INSERT INTO l_attempts VALUES (%(id)s, 1, 'l', now(), NULL)",
    "INSERT INTO l_inputs VALUES (%(id)s, 0, %(id)s, 1)",
)
_COMPLETE = (
    "UPDATE l_tasks SET status = 'completed', token = 'c', lease = NULL WHERE id = %(id)s",
    "UPDATE l_attempts SET ended = now() WHERE task_id = %(id)s AND attempt = 1",
    "INSERT INTO l_commits (key, location, task_id, at) VALUES (%(id)s, repeat('y', 100), %(id)s, now())",
    "INSERT INTO l_partitions VALUES (%(id)s, currval('l_commits_revision_seq'), repeat('y', 100), %(id)s, now())",
    "INSERT INTO l_events (id, key, state, at) VALUES (%(id)s || 'c', %(id)s, 'filtered', now())",
)


def transactions_per_s(url: str) -> float:
    """Return how many tasks a second go through their three transactions."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLES)
    done = [0] * CLIENTS
    ends_at_s = time.perf_counter() + SECONDS

    def work(number: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while time.perf_counter() < ends_at_s:
                values = {"id": f"{number}-{done[number]}"}
                for statements in (_CREATE, _CLAIM, _COMPLETE):
                    with connection.pipeline(), connection.transaction():
                        for each in statements:
                            connection.execute(each, values, prepare=True)
                done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(done) / SECONDS
