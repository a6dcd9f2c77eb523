"""The planner's tables of each GPU kernel's registers, shared memory and spills, as the compilers report them.

The planner computes occupancy from the tables, so that a plan is the same on a machine without a compiler. This module
reads and writes a table, compares it with new reports, and holds the command line; kernel_resources.py (nvcc) and
kernel_resources_amd.py (clang) run their compiler and parse its report.
"""

import argparse
import csv
import difflib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc" / "gpu" / "instances"
TABLES = ROOT / "jax_vbgemm" / "_src" / "planner" / "tables"


def arguments_parser(description: str | None, archs: Iterable[str], table: Path) -> argparse.ArgumentParser:
    """The options that both programs have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="compare with the file, do not write it; 1 where they differ"
    )
    parser.add_argument("--arch", action="append", choices=list(archs), help="architecture, repeatable (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at a time")
    parser.add_argument("--table", type=Path, default=table, help=f"the file (default: {table.relative_to(ROOT)})")
    parser.add_argument(
        "--reports",
        type=Path,
        metavar="DIR",
        help="read the reports that a build for the architectures given by --arch kept there, instead of compiling",
    )
    parser.add_argument(
        "--partial", action="store_true", help="the reports are of some kernels; rows of the others stay as they are"
    )
    return parser


def kept_reports(folder: Path) -> list[str]:
    """The compiler's reports that a build by tools/keep_report.sh wrote into the folder."""
    return [path.read_text() for path in folder.glob("*.txt")]


def compile_all(tasks: Iterable[tuple[Path, str]], command: Callable[[Path, str], list[str]], jobs: int) -> list[str]:
    """Compiles each (source file, architecture) by command(source, architecture), and gives the reports."""

    def report(task: tuple[Path, str]) -> str:
        source, arch = task
        result = subprocess.run(command(source, arch), capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"{source.name} does not compile for {arch}:\n{result.stderr}")
        return result.stderr

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(report, tasks))


def finish(
    arguments: argparse.Namespace, archs: Sequence[str], measured: Sequence[Any], row: Any, waste: Callable[[Any], str]
) -> int:
    """Writes or checks the table and gives the program's exit status.

    measured: the kernels of the architectures `archs`, as NamedTuples of type `row`.
    waste: what a kernel spills, in words; the empty string for a kernel that keeps all its values in registers.
    """
    if not measured:
        raise SystemExit(f"no report names a kernel for {', '.join(archs)}")
    wasteful = [(each, waste(each)) for each in measured if waste(each)]
    for each, words in wasteful:
        print(f"{each.kernel} {each.dtype} on {each.arch}: {words}", file=sys.stderr)
    stale = _update(arguments, measured, archs, row)
    return 1 if wasteful or (arguments.check and stale) else 0


def _update(arguments: argparse.Namespace, measured: Sequence[Any], archs: Sequence[str], row: Any) -> bool:
    """Replaces the rows of these architectures in the table, or with `--partial` those of the kernels in the reports.

    With `--check` it leaves the table and prints how it differs. Returns whether it differs.
    """
    table, check = arguments.table, arguments.check
    committed = _read(table, row)
    found = {each[:3] for each in measured}  # architecture, kernel, arithmetic
    kept = [each for each in committed if (each[:3] not in found if arguments.partial else each.arch not in archs)]
    old, new = (_render(rows, row) for rows in (committed, [*measured, *kept]))
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
    """The rows of the committed file; an empty list where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [row(arch, kernel, dtype, *map(int, figures)) for arch, kernel, dtype, *figures in rows]
