"""The rotation of the slow tests, which conftest.py takes over.

Each day has a part of the slow tests, and the marker `today` is on those of one part: of this day's, or of that which
the environment variable VBGEMM_SLOW_PART names (modulo PARTS). `-m "not slow or today"` runs the default tests and this
part, `-m today` the part alone, `-m slow` all slow tests. One part a week has no tests: CI then builds for ROCm.
"""

import os
import time
import zlib

import pytest

PARTS = 42
_SECONDS_A_DAY = 86400
_WITH_TESTS = [part for part in range(PARTS) if part % 7]


def _part_of(item: pytest.Item) -> int | None:
    """The part of a slow test. Tests whose markers name the same `turn` have the same part: they share programs that
    take long to compile."""
    markers = list(item.iter_markers("slow"))
    turn = next((marker.kwargs["turn"] for marker in markers if "turn" in marker.kwargs), item.nodeid)
    return _WITH_TESTS[zlib.crc32(turn.encode()) % len(_WITH_TESTS)] if markers else None


def _today() -> int:
    return int(os.environ["VBGEMM_SLOW_PART"]) % PARTS


def pytest_configure() -> None:
    # In the environment, so that xdist's workers, and tests after midnight, have the same part.
    os.environ.setdefault("VBGEMM_SLOW_PART", str(int(time.time()) // _SECONDS_A_DAY))


def pytest_report_header() -> str:
    return f"slow tests of today: part {_today()} of 0 to {PARTS - 1}"


def mark_today(items: list[pytest.Item]) -> None:
    for item in items:
        if _part_of(item) == _today():
            item.add_marker(pytest.mark.today)
