"""The source tree around the tests. Tests of an installed wheel run without it: what reads it is then not collected.

A hook of pytest that conftest.py takes over; the summary of a run lists what was left out.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
IS_THERE = (ROOT / "csrc").is_dir()

# What reads the tree: documents, examples, benchmarks, tools, and sources that are compiled.
_READERS = {
    TESTS / name
    for name in (
        "benchmarks",
        "emulation",
        "examples",
        "native",
        "packaging/test_build.py",
        "packaging/test_wheels.py",
        "planner/test_prediction.py",
        "planner/test_single_dots.py",
        "test_docs.py",
        "test_readme.py",
        "tools/test_product_loops.py",
    )
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if not IS_THERE and collection_path in _READERS else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not IS_THERE:
        names = ", ".join(sorted(str(path.relative_to(TESTS)) for path in _READERS if path.exists()))
        terminalreporter.write_line(f"no source tree, so that these were not collected: {names}")
