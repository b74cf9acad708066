"""A secret manager as a command: secrets are files in a directory. ``secret_manager.py DIRECTORY ACTION [NAME]``."""

from __future__ import annotations

import sys
from pathlib import Path


def main(directory: Path, action: str, name: str = "") -> int:
    place = directory / name
    match action:
        case "list":
            print("\n".join(each.name for each in directory.iterdir()))
        case "read":
            if not place.exists():
                return 3
            sys.stdout.buffer.write(place.read_bytes())
        case "create":
            try:
                with place.open("xb") as file:
                    file.write(sys.stdin.buffer.read())
            except FileExistsError:
                return 4
        case "replace":
            place.write_bytes(sys.stdin.buffer.read())
        case "delete":
            place.unlink(missing_ok=True)
        case _:
            print(f"no such action: {action}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
