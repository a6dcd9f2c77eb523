"""The rotation of the slow tests, which conftest.py takes over.

Each day has some of the slow tests, and the marker `today` is on those of one day: of this one, or of that whose
number the environment variable VBGEMM_SLOW_PART has. `-m "not slow or today"` runs the default tests and this day's,
`-m today` this day's alone, `-m slow` all slow tests.

The tests of one `turn` share a program that takes long to compile, and run on one day; each day has one turn of those
that are collected, in the order of their names. Of the other slow tests each day has one in PARTS. One day a week has
no tests: CI then builds for ROCm.
"""

import os
import time
import zlib

import pytest

PARTS = 18
_SECONDS_A_DAY = 86400


def _turn_of(item: pytest.Item) -> str | None:
    return next((marker.kwargs["turn"] for marker in item.iter_markers("slow") if "turn" in marker.kwargs), None)


def pytest_configure() -> None:
    # In the environment, so that xdist's workers, and tests after midnight, have the same day.
    os.environ.setdefault("VBGEMM_SLOW_PART", str(int(time.time()) // _SECONDS_A_DAY))


def pytest_report_header() -> str:
    return f"slow tests of day {os.environ['VBGEMM_SLOW_PART']}"


def mark_today(items: list[pytest.Item]) -> None:
    weeks, day = divmod(int(os.environ["VBGEMM_SLOW_PART"]), 7)
    if day == 0:
        return
    number = 6 * weeks + day - 1  # of the days that have tests
    turns = sorted({turn for item in items if (turn := _turn_of(item))})
    for item in items:
        turn = _turn_of(item)
        if turn:
            is_today = turn == turns[number % len(turns)]
        else:
            is_today = "slow" in item.keywords and zlib.crc32(item.nodeid.encode()) % PARTS == number % PARTS
        if is_today:
            item.add_marker(pytest.mark.today)
