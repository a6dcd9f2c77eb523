"""Writes or checks jax_vbgemm/_src/planner/tables/resources_amd.csv: the registers, shared memory (LDS) and spills of
every ROCm kernel, as clang reports them.

tests/planner compares the occupancy that the planner computes from this file with the occupancy that clang reports. Run
the program after any change to the kernels; `--check` is for CI. It needs clang 19, and a ROCm installation or the
stand-in that tools/rocm/make_toolchain.sh makes (ROCM_PATH), but no GPU. A kernel with scratch memory or spilled vector
registers is an error, with `--check` and without; only on gfx908 registers may spill, into the accumulation registers,
which are a file of their own there. `--reports` reads the reports that a build by tools/keep_report.sh kept, instead of
compiling again.
"""

import os
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

from resource_table import ROOT, SOURCES, TABLES, arguments_parser, compile_all, finish, kept_reports

TABLE = TABLES / "resources_amd.csv"
FAMILIES = {
    "gfx908": ("simt", "rows"),
    "gfx90a": ("simt", "rows", "mfma"),
    "gfx942": ("simt", "rows", "mfma"),
}  # no wheel is built for gfx908 (MI100), but plans are made for it
FLAGS = ("-O3", "-std=c++17", "-D__HIP_PLATFORM_AMD__")
FLAGS += ("-mllvm", "-amdgpu-early-inline-all=true", "-mllvm", "-amdgpu-function-calls=false")  # as in cmake/hip

REMARK = re.compile(r"remark: +([^:]+): (\S+) \[-Rpass-analysis=kernel-resource-usage\]")
KERNEL = re.compile(r"vbgemm_([tm]\d+_(?:wide_)?[a-z]+)_(\w+)")


class Resources(NamedTuple):
    """One kernel on one architecture.

    vgprs and agprs (vector and accumulation registers) are per thread, sgprs (scalar registers) per wave, shared memory
    is per block and scratch memory per thread; waves_per_simd is the occupancy that the compiler reports.
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


def command(clang: str, rocm: str, source: Path, arch: str) -> list[str]:
    """The command with which clang reports a source file's kernels."""
    options = ["-x", "hip", f"--rocm-path={rocm}", f"--offload-arch={arch}", "--cuda-device-only"]
    options += ["--no-gpu-bundle-output", *FLAGS, "-Rpass-analysis=kernel-resource-usage", "-Wno-pass-failed"]
    return [clang, *options, f"-I{ROOT / 'csrc'}", "-c", str(source), "-o", os.devnull]


def parse(report: str, archs: list[str]) -> list[Resources]:
    """The kernels of a report. A kernel's figures follow the remark that names it; helper kernels are left out.

    Remarks do not name an architecture; a kernel that was compiled for several occurs once for each, in their order.
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
            spills = int(figures["VGPRs Spill"])  # scalar registers spill to lanes of vector registers, not to memory
            sizes = [figures[key] for key in ("VGPRs", "AGPRs", "SGPRs", "LDS Size", "ScratchSize")]
            rows.append(Resources(arch, *found.groups(), *map(int, sizes), spills, int(figures["Occupancy"])))  # type: ignore[misc]
    return rows


def waste(row: Resources) -> str:
    """What a kernel keeps outside its registers, in words."""
    if row.scratch_bytes or (row.spills and row.arch != "gfx908"):
        return f"{row.scratch_bytes} bytes of scratch memory, {row.spills} spilled registers"
    return ""


def main() -> int:
    """Command line."""
    parser = arguments_parser(__doc__, FAMILIES, TABLE)
    parser.add_argument(
        "--clang", default=os.environ.get("HIPCXX", "clang++-19"), help="default: $HIPCXX, else clang++-19"
    )
    parser.add_argument(
        "--rocm", default=os.environ.get("ROCM_PATH", "/opt/rocm"), help="default: $ROCM_PATH, else /opt/rocm"
    )
    arguments = parser.parse_args()

    archs = arguments.arch or list(FAMILIES)
    if arguments.reports:
        measured = [row for report in kept_reports(arguments.reports) for row in parse(report, archs)]
    else:
        tasks = [
            (source, arch)
            for arch in archs
            for family in FAMILIES[arch]
            for source in sorted(SOURCES.glob(f"{family}_*.cu"))
        ]
        reports = compile_all(tasks, partial(command, arguments.clang, arguments.rocm), arguments.jobs)
        measured = [row for report, (_, arch) in zip(reports, tasks, strict=True) for row in parse(report, [arch])]
    return finish(arguments, archs, measured, Resources, waste)


if __name__ == "__main__":
    sys.exit(main())
