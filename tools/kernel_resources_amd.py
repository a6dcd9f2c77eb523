"""Writes or checks resources_amd.csv of jax_vbgemm/_src/planner/tables: what clang reports of every ROCm kernel.

tests/planner compares the occupancy that follows from this file with the compiler's own. Run it after any change to the
kernels; `--check` is for CI. Needs clang 19 and a ROCm install or tools/rocm/make_toolchain.sh's stand-in
(ROCM_PATH), no GPU. A kernel with scratch memory or spilled vector registers is an error either way. `--reports` reads
what a build by tools/keep_report.sh kept instead of compiling again.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from resource_table import ROOT, SOURCES, TABLES, arguments_parser, update

TABLE = TABLES / "resources_amd.csv"
FAMILIES = {
    "gfx908": ("simt", "rows"),
    "gfx90a": ("simt", "rows", "mfma"),
    "gfx942": ("simt", "rows", "mfma"),
}  # the MI100 is only planned for
FLAGS = ("-O3", "-std=c++17", "-D__HIP_PLATFORM_AMD__")
FLAGS += ("-mllvm", "-amdgpu-early-inline-all=true", "-mllvm", "-amdgpu-function-calls=false")  # as in cmake/hip

REMARK = re.compile(r"remark: +([^:]+): (\S+) \[-Rpass-analysis=kernel-resource-usage\]")
KERNEL = re.compile(r"vbgemm_([tm]\d+_(?:wide_)?[a-z]+)_(\w+)")


class Resources(NamedTuple):
    """One kernel on one architecture.

    Registers of a thread (vector, accumulation) and of a wave (scalar), shared memory of a block, scratch memory of a
    thread, and the waves that the compiler says a SIMD can hold.
    """

    arch: str
    kernel: str
    dtype: str
    vgprs: int
    agprs: int
    sgprs: int
    shared_bytes: int
    scratch_bytes: int
    spills: int
    waves_per_simd: int


def compiler_report(source: Path, arch: str, clang: str, rocm: str) -> str:
    """clang's remarks on a source file's kernels."""
    command = [clang, "-x", "hip", f"--rocm-path={rocm}", f"--offload-arch={arch}", "--cuda-device-only"]
    command += ["--no-gpu-bundle-output", *FLAGS, "-Rpass-analysis=kernel-resource-usage", "-Wno-pass-failed"]
    command += [f"-I{ROOT / 'csrc'}", "-c", str(source), "-o", os.devnull]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{source.name} does not compile for {arch}:\n{result.stderr}")
    return result.stderr


def parse(report: str, archs: list[str]) -> list[Resources]:
    """The kernels of a report: the remarks after the one that names a kernel are its own; helpers are left out.

    Remarks don't name an architecture; a kernel compiled for several is there once for each, in their order.
    """
    kernels: list[tuple[str, dict[str, str]]] = []
    for field, value in REMARK.findall(report):
        if field == "Function Name":
            kernels.append((value, {}))
        else:
            kernels[-1][1][field.split(" [")[0]] = value
    rows = []
    seen: Counter[str] = Counter()
    for name, figures in kernels:
        found = KERNEL.fullmatch(name)
        if found:
            arch = archs[seen[name]]
            seen[name] += 1
            spills = int(figures["VGPRs Spill"])  # scalar ones go to lanes of vector registers, not to memory
            sizes = [figures[key] for key in ("VGPRs", "AGPRs", "SGPRs", "LDS Size", "ScratchSize")]
            rows.append(Resources(arch, *found.groups(), *map(int, sizes), spills, int(figures["Occupancy"])))  # type: ignore[misc]
    return rows


def measure(archs: list[str], clang: str, rocm: str, jobs: int) -> list[Resources]:
    """Compiles every source file for every architecture."""
    tasks = [
        (source, arch)
        for arch in archs
        for family in FAMILIES[arch]
        for source in sorted(SOURCES.glob(f"{family}_*.cu"))
    ]
    with ThreadPoolExecutor(jobs) as pool:
        reports = pool.map(lambda task: parse(compiler_report(*task, clang, rocm), [task[1]]), tasks)
        return sorted(row for rows in reports for row in rows)


def main() -> int:
    """Command line."""
    parser = arguments_parser(__doc__, FAMILIES, TABLE)
    parser.add_argument(
        "--clang", default=os.environ.get("HIPCXX", "clang++-19"), help="default: $HIPCXX, else clang++-19"
    )
    parser.add_argument(
        "--rocm", default=os.environ.get("ROCM_PATH", "/opt/rocm"), help="default: $ROCM_PATH, else /opt/rocm"
    )
    parser.add_argument(
        "--reports", type=Path, metavar="DIR", help="take the reports that a build for exactly these --arch kept there"
    )
    arguments = parser.parse_args()

    archs = arguments.arch or list(FAMILIES)
    if arguments.reports:
        measured = [row for path in arguments.reports.glob("*.txt") for row in parse(path.read_text(), archs)]
    else:
        measured = measure(archs, arguments.clang, arguments.rocm, arguments.jobs)
    wasteful = [row for row in measured if row.scratch_bytes or row.spills]
    for row in wasteful:
        where = f"{row.kernel} {row.dtype} on {row.arch}"
        print(f"{where}: {row.scratch_bytes} bytes of scratch memory, {row.spills} spilled registers", file=sys.stderr)

    stale = update(arguments.table, measured, archs, Resources, check=arguments.check)
    return 1 if wasteful or (arguments.check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
