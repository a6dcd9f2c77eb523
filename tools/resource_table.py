"""The planner's tables of what compilers report of the kernels: read, written, and compared with new reports.

The planner computes occupancy from them, so that a plan is the same on machines without a compiler. kernel_resources.py
and kernel_resources_amd.py, which share this, know what their compilers say.
"""

import argparse
import csv
import difflib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc" / "gpu" / "instances"
TABLES = ROOT / "jax_vbgemm" / "_src" / "planner" / "tables"


def arguments_parser(description: str | None, archs: Iterable[str], table: Path) -> argparse.ArgumentParser:
    """The options of both programs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="compare with the file, do not write it; 1 where they differ"
    )
    parser.add_argument("--arch", action="append", choices=list(archs), help="architecture, repeatable (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at a time")
    parser.add_argument("--table", type=Path, default=table, help=f"the file (default: {table.relative_to(ROOT)})")
    return parser


def update(table: Path, measured: Sequence[Any], archs: Sequence[str], row: Any, *, check: bool) -> bool:
    """Writes the rows of these architectures, NamedTuples of type `row`, into the table, whose others stay as they are.

    check: leaves the table, and shows how it differs. Returns whether it did.
    """
    committed = _read(table, row)
    old, new = (
        _render(rows, row) for rows in (committed, [*measured, *(each for each in committed if each.arch not in archs)])
    )
    if not check:
        table.write_text(new)
    elif new != old:
        lines = old.splitlines(), new.splitlines()
        print("\n".join(difflib.unified_diff(*lines, str(table), "compiler's report", lineterm="")))
        print(f"{table} is stale: run {Path(sys.argv[0])}", file=sys.stderr)
    return new != old


def _render(rows: Iterable[Any], row: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(row._fields)
    writer.writerows(sorted(rows))
    return text.getvalue()


def _read(path: Path, row: Any) -> list[Any]:
    """The rows of the committed file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [row(arch, kernel, dtype, *map(int, figures)) for arch, kernel, dtype, *figures in rows]
