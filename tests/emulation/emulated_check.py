"""Builds the GPU kernels' check for the CPU (tests/native/emulation) and runs it."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

from compiled import Compiled

ROOT = Path(__file__).resolve().parents[2]
CSRC, NATIVE = ROOT / "csrc", ROOT / "tests" / "native"
INCLUDES = [f"-I{CSRC}", f"-I{NATIVE}"]
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-march=native", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ['-DVBGEMM_GPU_VENDOR_HEADER="emulation/gpu_vendor.h"']
FLAGS += ["-fPIC", "-fno-semantic-interposition"]  # programs and shared libraries have the same objects
CDNA = ["-DVBGEMM_WAVE_SIZE=64"]
RACES = ["-DVBGEMM_RACES"]  # a flag of the whole executable, in which only the kernels are instrumented
# The files of the pipelined kernels of ragged products of bfloat16. Those of float16 differ in one conversion and one
# instruction, and take as long to compile again.
PIPELINED = ["ragged_bf16", "ragged_gathered_bf16"]
PIPELINED_TF32 = ["ragged_tf32"]  # of float32, with matrices that are contiguous along K
PIPELINED_FLOAT8 = ["ragged_e4m3", "ragged_e5m2_e4m3"]  # those of two other pairs differ in one instruction
PIPELINED_INT8 = ["ragged_s8"]
PIPELINED_MIXED = ["ragged_mixed_bf16", "ragged_mixed_f16"]
PIPELINED_F16 = ["ragged_f16", "ragged_gathered_f16"]
PIPELINED_LAUNCHES = ["gpu/host/sm90_launch.cu"]
LAUNCHES = ["emulation/block.cc", "gpu/host/launch.cu", "gpu/host/ragged_launch.cu"]
TIMEOUT = 300  # seconds that a check may take
# Of the driver of the check of batches: -O1 takes twice as long to compile, with -O0 the check takes up to six times as
# long. The driver of races is that of the same machine without them, as its preprocessed source is the same.
DRIVER = ["-Og"]
SANITIZE = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# Of what every program has whatever kernels it is to check, so that it is compiled once: the launches and the threads.
HOST = ["-O2"]
FIXED_KERNELS = ["add_partial_sums", "add_scaled", "square_sums"]
# Sanitized, the sums of all types take long to compile, and no time to run.
UNOPTIMIZED = {"add_partial_sums": ["-O0"]}


def sanitizing(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if flag in SANITIZE]


def source_file(name: str) -> Path:
    """The file of the emulation, or else of csrc, by its path in there."""
    return (NATIVE if name.startswith("emulation/") else CSRC) / name


class Builder:
    """Builds the check of some files of kernels."""

    def __init__(self, cache: Path) -> None:
        self.compiled = Compiled(cache, COMPILER)

    def executable(
        self,
        kernels: Sequence[str],
        flags: Sequence[str] = (),
        machine: Sequence[str] = (),
        changed: Path | None = None,
    ) -> Path:
        """The check with some files of kernels, for a machine.

        `flags` and `changed`, a folder with other versions of some files of csrc, are the kernels' alone: the driver is
        always the same."""
        instrument = ["-g1", "-fsanitize=thread"] if RACES[0] in machine else sanitizing(flags)
        driver = ["emulation/main.cc", "emulation/fiber.cc"]
        host = ["emulation/block.cc", "gpu/host/launch.cu"]
        if CDNA[0] not in machine:  # which has no pipelined kernels
            driver.append("emulation/tensor_maps.cc")
            host += PIPELINED_LAUNCHES
        # The linker takes an inline function from the first object that has it, so those with changes come first.
        parts: list[tuple[str, Sequence[str], Path | None]] = []
        parts += [(f"gpu/instances/{name}.cu", [*flags, *instrument], changed) for name in kernels]
        parts += [self._fixed(name, instrument, changed) for name in FIXED_KERNELS]
        # What the host reads of the kernels' headers are sizes, which no mistake in a kernel changes.
        host_changed = changed if changed is not None and (changed / "gpu/host").exists() else None
        parts += [(name, [*HOST, *sanitizing(flags)], host_changed) for name in host]
        parts += [(name, DRIVER, None) for name in driver]

        return self._linked(parts, [*flags, *instrument], machine)

    def _fixed(
        self, kernels: str, instrument: Sequence[str], changed: Path | None
    ) -> tuple[str, Sequence[str], Path | None]:
        optimization = UNOPTIMIZED.get(kernels, []) if SANITIZE[1] in instrument else []
        return f"gpu/instances/{kernels}.cu", [*instrument, *optimization], changed

    def ragged_executable(
        self,
        kernels: Sequence[str] = PIPELINED,
        flags: Sequence[str] = (),
        changed: Path | None = None,
        unchanged: Sequence[str] = (),
    ) -> Path:
        """The check of ragged products with some files of kernels; arguments as above. `unchanged` names those files
        that are compiled without the changes, as other executables have them."""
        host = [*LAUNCHES, *PIPELINED_LAUNCHES]
        driver = [f"emulation/{name}.cc" for name in ("ragged_main", "fiber", "tensor_maps")]
        parts: list[tuple[str, Sequence[str], Path | None]] = []
        parts += [(f"gpu/instances/{name}.cu", flags, changed) for name in [*kernels, "tile_list"]]
        parts += [(f"gpu/instances/{name}.cu", flags, None) for name in unchanged]
        parts.append(self._fixed("add_partial_sums", sanitizing(flags), changed))
        parts += [(name, [*HOST, *sanitizing(flags)], None) for name in host]
        parts += [(name, DRIVER, None) for name in driver]
        return self._linked(parts, flags)

    def ragged_library(self, kernels: Sequence[str], include: str, machine: Sequence[str], changed: Path) -> Path:
        """The custom call of ragged products as a shared library, with the headers of XLA in a folder."""
        host, driver = [*LAUNCHES], ["emulation/fiber.cc"]
        if CDNA[0] not in machine:
            host += PIPELINED_LAUNCHES
            driver.append("emulation/tensor_maps.cc")
        parts: list[tuple[str, Sequence[str], Path | None]] = []
        parts += [
            (f"gpu/instances/{name}.cu", ["-O0"], changed) for name in [*kernels, "tile_list"]
        ]  # its calls are small
        parts.append(self._fixed("add_partial_sums", [], changed))
        parts += [(name, HOST, changed) for name in host]
        parts += [(name, DRIVER, None) for name in driver]
        parts.append(("handlers/ragged.cc", ["-O0", "-isystem", include], changed))
        return self._linked(parts, ["-shared"], machine)

    def array_library(self, handler: str, kernels: str, include: str) -> Path:
        """The custom call of a handler on many arrays as a shared library, with the headers of XLA in a folder."""
        parts = [
            self._fixed(kernels, [], None),
            ("emulation/block.cc", HOST, None),
            ("emulation/fiber.cc", DRIVER, None),
            (f"handlers/{handler}.cc", ["-O0", "-isystem", include], None),
        ]
        return self._linked(parts, ["-shared"])

    def _linked(
        self, parts: Sequence[tuple[str, Sequence[str], Path | None]], flags: Sequence[str], machine: Sequence[str] = ()
    ) -> Path:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda part: self._object(*part, machine), parts))
        return self.compiled.program(flags, objects)

    def _object(self, name: str, flags: Sequence[str], changed: Path | None, machine: Sequence[str]) -> Path:
        options = [*FLAGS, *flags, "-x", "c++"]
        # The machine's macros are no part of an object's name: not every file depends on them.
        file = source_file(name)
        source = [*machine, *INCLUDES, str(file)]
        if changed is not None:
            replaced = self._read(options, source, changed)
            if replaced:
                version = changed / name
                source = [*machine, f"-I{changed}", *INCLUDES, str(version if version.exists() else file)]
                # An #include that is relative to a file of csrc would find the version there.
                assert not self._read(options, source, changed)
        return self.compiled.object(options, source)

    def _read(self, options: Sequence[str], source: Sequence[str], changed: Path) -> set[Path]:
        """The files of csrc that a source file consists of and that have another version."""
        files = {path for path in self.compiled.preprocessed(options, source).files if path.is_relative_to(CSRC)}
        return {path for path in files if (changed / path.relative_to(CSRC)).exists()}


def write_version(changed: Path, file: Path, text: str) -> None:
    """Writes another version of a file of csrc to the folder of changed files."""
    version = changed / file.relative_to(CSRC)
    version.parent.mkdir(parents=True, exist_ok=True)
    version.write_text(text)


def some_kernels(
    builder: Builder, changed: Path, names: Sequence[str], flags: Sequence[str] = (), machine: Sequence[str] = ()
) -> Path:
    """The check with files of kernels, or with single kernels."""
    return builder.executable(some_files(changed, names), flags, machine, changed)


def some_files(changed: Path, names: Sequence[str]) -> list[str]:
    """Files of kernels, of which those that are given as file:kernel have a version with only these kernels; each takes
    seconds to compile."""
    files: dict[str, list[str]] = {}
    for name in names:
        file, _, kernel = name.partition(":")
        files.setdefault(file, []).extend([kernel] if kernel else [])
    for file, kernels in files.items():
        if kernels:
            leave(changed, CSRC / f"gpu/instances/{file}.cu", kernels)
    return list(files)


def leave(changed: Path, file: Path, kernels: Sequence[str]) -> None:
    """Writes a version of a file of kernels that has only some of them."""
    text = file.read_text()
    (kind,) = set(re.findall(r"^VBGEMM_\w+\(DEFINE, (\w+)\)$", text, re.MULTILINE))
    text = re.sub(r"^VBGEMM_.*$", "", text, flags=re.MULTILINE)
    write_version(changed, file, text + "".join(f"DEFINE({kernel}, {kind})\n" for kernel in kernels))


def change(changed: Path, file: Path, right: str, wrong: str) -> None:
    """Plants a mistake in a version of a file of csrc."""
    text = file.read_text()
    assert text.count(right) == 1, f"{file.name} no longer has the text that this test changes"
    write_version(changed, file, text.replace(right, wrong))


NO_REPLAYS = ["--no-replays"]  # an option of the check of batches: an emulated replay is the same launch again


def first_fault(executable: Path, *options: str, common: Sequence[str] = NO_REPLAYS) -> str:
    """The line of the first fault, after which the check is ended; "" if there is none."""
    with subprocess.Popen([str(executable), *common, *options], stdout=subprocess.PIPE, text=True) as process:
        limit = Timer(TIMEOUT, process.kill)
        limit.start()
        try:
            line = next((line for line in process.stdout if line.startswith("FAIL")), "")
            assert "its launch failed" not in line, "no kernel ran, whatever mistake it has"
            # Operands and results may end where an unmapped page begins.
            return "FAIL outside of the memory" if not line and process.wait() == -signal.SIGSEGV else line
        finally:
            limit.cancel()
            process.kill()


def check(executable: Path, *options: str, common: Sequence[str] = NO_REPLAYS) -> subprocess.CompletedProcess[str]:
    command = [str(executable), *common, *options]
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT, env=environment)


def assert_passes(
    executable: Path, *options: str, tiles: Sequence[str] = (), common: Sequence[str] = NO_REPLAYS
) -> None:
    result = check(executable, *options, common=common)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PASS" in result.stdout
    for tile in tiles:
        assert f" {tile} " in result.stdout, f"{tile} was not run"
