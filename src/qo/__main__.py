"""``python -m qo``: the command ``qo``."""

from __future__ import annotations

from qo.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
