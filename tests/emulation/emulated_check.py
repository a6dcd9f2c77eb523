"""Builds the GPU kernels' check for the CPU (csrc/emulation) and runs it."""

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-march=native", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ['-DVBGEMM_GPU_VENDOR_HEADER="emulation/gpu_vendor.h"']
CDNA = ["-DVBGEMM_WAVE_SIZE=64"]
RACES = ["-DVBGEMM_RACES"]  # a flag of the whole executable, in which only the kernels are instrumented
SANITIZE = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


class Builder:
    """Compiles objects that are not in the cache; the name of an object in the cache is a hash of all its inputs."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def executable(
        self, kernels: Sequence[str], flags: Sequence[str] = (), csrc: Path = CSRC, machine: Sequence[str] = ()
    ) -> Path:
        """The check with some files of kernels, compiled with `flags` from `csrc`; a machine has one driver for all of
        them."""
        flags = [*flags, *machine]
        parts = [("emulation/main.cc", machine, CSRC), ("emulation/fiber.cc", machine, CSRC)]
        instrument = ["-g1", "-fsanitize=thread"] if RACES[0] in flags else []
        parts += [(name, flags, csrc) for name in ("emulation/block.cc", "gpu/host/launch.cu")]
        kernels = ["add_shares", "add_scaled", "square_sums", *kernels]
        parts += [(f"gpu/instances/{name}.cu", [*flags, *instrument], csrc) for name in kernels]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda part: self._built(["-c", "-x", "c++"], *part), parts))
        key = hashlib.sha256("".join(map(str, objects)).encode()).hexdigest()[:20]
        return self._make([*flags, *instrument, *map(str, objects)], self.cache / f"check_{key}")

    def _built(self, mode: list[str], name: str, flags: Sequence[str], csrc: Path) -> Path:
        options, source = [*FLAGS, *flags, *mode], [f"-I{csrc}", str(csrc / name)]
        # The preprocessed source, independent of its path: a copy of the sources shares all objects that it does not
        # change.
        content = self._run([*options, *source, "-E", "-P", "-o", "-"])
        key = hashlib.sha256(repr((COMPILER, options, content)).encode()).hexdigest()[:20]
        return self._make([*options, *source], self.cache / f"{key}.o")

    def _make(self, command: list[str], target: Path) -> Path:
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes may build the same object
            if not target.exists():
                unfinished = target.with_suffix(".unfinished")
                self._run([*command, "-o", str(unfinished)])
                unfinished.replace(target)
        return target

    @staticmethod
    def _run(command: list[str]) -> str:
        result = subprocess.run([COMPILER, *command], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout


def check(executable: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(executable), "--no-replays", *options]
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)


def assert_passes(executable: Path, *options: str, tiles: Sequence[str] = ()) -> None:
    result = check(executable, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PASS" in result.stdout
    for tile in tiles:
        assert f" {tile} " in result.stdout, f"{tile} was not run"
