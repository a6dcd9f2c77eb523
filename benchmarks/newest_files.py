"""What the tables of the newest figures share: the files, their sources, and how a table is written."""

import csv
from collections.abc import Sequence
from pathlib import Path

from figures import source_of

RESULTS = Path(__file__).parent / "results"
NEVER = "never measured"


def rows_of(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


def source(name: str) -> dict[str, str]:
    return source_of(RESULTS / name, RESULTS / "sources.csv")


def duration(us: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} us"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)]
