"""Production code in virtual time, under faults that a seed draws.

``python -m simulation.engine --help`` says how to replay one; see ``docs/reference/proof.md``.

Each *part* is one world: ``queue`` (with monitors and schedulers), ``worker``, ``shards``, ``purges``,
``limits`` and ``dispatcher``.
"""
