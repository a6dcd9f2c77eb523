"""Writes or checks jax_vbgemm/_src/planner/tables/resources.csv: the registers, shared memory and spills of every CUDA
kernel that planners choose, as ptxas reports them.

Run it after any change to the kernels; `--check` is for CI and needs nvcc but no GPU. A kernel that spills is an error,
with `--check` and without, also one that is not in the table, and so are products of a warpgroup that ptxas lets wait
for each other. `--reports` reads the reports that a build by tools/keep_report.sh kept, instead of
compiling again.
"""

import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from resource_table import ROOT, SOURCES, TABLES, arguments_parser, compile_all, finish, kept_reports

TABLE = TABLES / "resources.csv"
ARCHS = ("sm_80", "sm_89", "sm_90a")
# The architecture of each name of csrc/catalogue.h; kernels that are not of one architecture have code for all.
ONLY_ON = {"hopper": "sm_90a"}

ENTRY = re.compile(
    r"Compiling entry function 'vbgemm_(?P<kernel>[tm]\d+_(?:wide_)?[a-z]+(?:_\d+x\d+)?)_(?P<dtype>\w+)'"
    r" for '(?P<arch>\w+)'"
)
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
OTHER = re.compile(r"Compiling entry function '(vbgemm_(?:ragged|tile_list|add|square)\w*)'")  # not in the table
SERIALIZED = re.compile(r".*wgmma.*serialized.*")


class Resources(NamedTuple):
    """One kernel on one architecture; its shared memory per block is the static and the dynamic one together."""

    arch: str
    kernel: str
    dtype: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def command(nvcc: str, source: Path, arch: str) -> list[str]:
    """The command with which ptxas reports a source file's kernels."""
    number = arch.removeprefix("sm_")
    target = f"-gencode=arch=compute_{number},code={arch}"
    options = ["-O3", "-std=c++17", "-cubin", "-Xptxas", "-v", target]
    return [nvcc, *options, f"-I{ROOT / 'csrc'}", str(source), "-o", os.devnull]


def launched_kernels() -> tuple[dict[tuple[str, str], int], dict[str, str]]:
    """The dynamic shared memory of a launch, by (kernel, arithmetic), and the GPUs that each kernel is written for, as
    a host program prints them from the sources."""
    program = """
    #include <cstdio>
    #include "gpu/host/dynamic_shared.h"
    int main() {
      using namespace vbgemm;
      for (int kernel = 0; kernel < kKernels; ++kernel)
        for (int kind = 0; kind < kKinds; ++kind)
          std::printf("%s %s %d %s\\n", kKernelNames[kernel], name_of(static_cast<Kind>(kind)),
                      dynamic_shared_bytes(static_cast<Kind>(kind), static_cast<Kernel>(kernel)),
                      kGpusNames[static_cast<int>(kKernelShapes[kernel].gpus)]);
    }"""
    with tempfile.TemporaryDirectory() as folder:
        executable = os.path.join(folder, "print")
        command = [
            os.environ.get("CXX", "g++"),
            "-std=c++17",
            "-w",
            '-DVBGEMM_GPU_VENDOR_HEADER="emulation/gpu_vendor.h"',
        ]
        command += [f"-I{ROOT / folder}" for folder in ("csrc", "tests/native")]
        command += ["-x", "c++", "-c", "-", "-o", executable + ".o"]
        subprocess.run(command, input=program, text=True, check=True)
        subprocess.run(
            [command[0], executable + ".o", "-o", executable, "-Wl,--unresolved-symbols=ignore-all"], check=True
        )
        lines = subprocess.run([executable], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split() for line in lines]
    return {(kernel, kind): int(size) for kernel, kind, size, _ in rows}, {row[0]: row[3] for row in rows}


def parse(report: str, dynamic: dict[tuple[str, str], int]) -> list[Resources]:
    """The kernels of a report. A kernel's figures follow the line that names it; helper kernels are left out."""
    kernels = []
    for text in re.split(r"(?=Compiling entry function)", report):
        entry = ENTRY.search(text)
        if not entry:
            continue
        frame, used, shared = FRAME.search(text), USED.search(text), SHARED.search(text)
        if not frame or not used:
            raise SystemExit(f"the compiler's report has no figures for {entry[0]}")
        stack, stores, loads = map(int, frame.groups())
        shared_bytes = (int(shared[1]) if shared else 0) + dynamic[entry["kernel"], entry["dtype"]]
        row = Resources(
            entry["arch"], entry["kernel"], entry["dtype"], int(used[1]), shared_bytes, stack, stores + loads
        )
        kernels.append(row)
    return kernels


def faults(report: str) -> list[str]:
    """What is wrong with the kernels of a report that are not in the table, and with the products of all."""
    found = SERIALIZED.findall(report)
    for text in re.split(r"(?=Compiling entry function)", report):
        entry, frame = OTHER.search(text), FRAME.search(text)
        if entry and frame and any(map(int, frame.groups())):
            found.append(f"{entry[1]}: {frame[0]}")
    return found


def has_code(row: Resources, gpus: str) -> bool:
    """Whether the kernel is more than a trap: on other architectures than their own, pipelined kernels are not."""
    return ONLY_ON.get(gpus, row.arch) == row.arch


def waste(row: Resources) -> str:
    """What a kernel keeps outside its registers, in words."""
    if row.spill_bytes or row.stack_bytes:
        return f"spills of {row.spill_bytes} bytes, stack of {row.stack_bytes} bytes"
    return ""


def main() -> int:
    """Command line."""
    parser = arguments_parser(__doc__, ARCHS, TABLE)
    parser.add_argument("--nvcc", default=os.environ.get("CUDACXX", "nvcc"), help="default: $CUDACXX, else nvcc")
    arguments = parser.parse_args()

    archs = arguments.arch or list(ARCHS)
    if arguments.reports:
        reports = kept_reports(arguments.reports)
    else:
        sources = sorted(SOURCES.glob("[!m]*.cu"))  # not mfma_*.cu, the kernels for AMD's matrix cores
        tasks = [(source, arch) for arch in archs for source in sources]
        reports = compile_all(tasks, partial(command, arguments.nvcc), arguments.jobs)
    dynamic, gpus = launched_kernels()
    rows = [row for report in reports for row in parse(report, dynamic)]
    measured = [row for row in rows if row.arch in archs and has_code(row, gpus[row.kernel])]
    wrong = [fault for report in reports for fault in faults(report)]
    print("\n".join(wrong), file=sys.stderr)
    return finish(arguments, archs, measured, Resources, waste) or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
