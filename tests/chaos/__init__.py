"""Everything at once: real processes under load, faults drawn from a seed, and a checker that looks at all records.

    python -m chaos --ground embedded --minutes 10 --seed 7      with tests/ on the path: ``make chaos`` does it

``plan`` draws the faults, ``ground`` is what they hit (``servers_ground``, ``embedded_ground``), ``monkey`` brings them
about. ``load`` feeds queue and pipelines and knows what must come out. ``versions`` and ``evidence`` gather what was
stored, ``history``, ``rows`` and ``notes`` judge it, and ``report`` says it in figures.
"""
