"""Builds the GPU kernels' check for the CPU (csrc/emulation) and runs it."""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

from compiled import Compiled

CSRC = Path(__file__).resolve().parents[2] / "csrc"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-march=native", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ['-DVBGEMM_GPU_VENDOR_HEADER="emulation/gpu_vendor.h"']
CDNA = ["-DVBGEMM_WAVE_SIZE=64"]
RACES = ["-DVBGEMM_RACES"]  # a flag of the whole executable, in which only the kernels are instrumented
TIMEOUT = 300  # seconds that a check may take
SANITIZE = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


class Builder:
    """Builds the check of some files of kernels."""

    def __init__(self, cache: Path) -> None:
        self.compiled = Compiled(cache, COMPILER)

    def executable(
        self, kernels: Sequence[str], flags: Sequence[str] = (), csrc: Path = CSRC, machine: Sequence[str] = ()
    ) -> Path:
        """The check with some files of kernels; `flags` and `csrc` are theirs, the driver is the same for a machine."""
        parts = [("emulation/main.cc", (), CSRC), ("emulation/fiber.cc", (), CSRC)]
        instrument = ["-g1", "-fsanitize=thread"] if RACES[0] in machine else []
        host = ["emulation/block.cc", "gpu/host/launch.cu"]
        if CDNA[0] not in machine:  # which has no pipelined kernels
            parts += [("emulation/tensor_maps.cc", (), CSRC)]
            host.append("gpu/host/pipelined_launch.cu")
        parts += [(name, flags, csrc) for name in host]
        kernels = ["add_partial_sums", "add_scaled", "square_sums", *kernels]
        parts += [(f"gpu/instances/{name}.cu", [*flags, *instrument], csrc) for name in kernels]

        def built(part: tuple[str, Sequence[str], Path]) -> Path:
            name, flags, csrc = part
            # The machine's macros are no part of an object's name: not every file depends on them.
            source = [*machine, f"-I{csrc}", str(csrc / name)]
            return self.compiled.object([*FLAGS, *flags, "-x", "c++"], source)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return self.compiled.program([*flags, *instrument], list(pool.map(built, parts)))


def _command(executable: Path, *options: str) -> list[str]:
    return [str(executable), "--no-replays", *options]


def first_fault(executable: Path, *options: str) -> str:
    """The line of the first group of checks with faults, after which the check is ended; "" if there is none."""
    with subprocess.Popen(_command(executable, *options), stdout=subprocess.PIPE, text=True) as process:
        limit = Timer(TIMEOUT, process.kill)
        limit.start()
        try:
            return next((line for line in process.stdout if line.startswith("FAIL")), "")
        finally:
            limit.cancel()
            process.kill()


def check(executable: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = _command(executable, *options)
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT, env=environment)


def assert_passes(executable: Path, *options: str, tiles: Sequence[str] = ()) -> None:
    result = check(executable, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PASS" in result.stdout
    for tile in tiles:
        assert f" {tile} " in result.stdout, f"{tile} was not run"
