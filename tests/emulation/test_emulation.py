"""The GPU kernels' sources, compiled for the CPU (csrc/emulation) and put through the checks that run on a GPU."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-march=native", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ['-DVBGEMM_GPU_VENDOR_HEADER="emulation/gpu_vendor.h"']
SANITIZE = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there")


class Builder:
    """Compiles what is not in the cache yet; an object's name there tells all that went into it."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def executable(self, dtypes: Sequence[str], flags: Sequence[str] = (), csrc: Path = CSRC) -> Path:
        """The check with the kernels of `dtypes`; `flags` and `csrc` are theirs, the driver is always the same."""
        parts = [("emulation/main.cc", [], CSRC), ("emulation/fiber.cc", [], CSRC)]
        parts += [(name, flags, csrc) for name in ("emulation/block.cc", "gpu/launch.cu")]
        parts += [(f"gpu/simt_{dtype}.cu", flags, csrc) for dtype in dtypes]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda part: self._built(["-c", "-x", "c++"], *part), parts))
        key = hashlib.sha256("".join(map(str, objects)).encode()).hexdigest()[:20]
        return self._make([*flags, *map(str, objects)], self.cache / f"check_{key}")

    def _built(self, mode: list[str], name: str, flags: Sequence[str], csrc: Path) -> Path:
        command = [*FLAGS, *flags, f"-I{csrc}", *mode, str(csrc / name)]
        files = sorted(path for path in csrc.rglob("*") if path.suffix in (".h", ".cc", ".cu", ".def"))
        content = b"".join(path.read_bytes() for path in files if "cpu" not in path.parts)
        key = hashlib.sha256(repr((COMPILER, command)).encode() + content).hexdigest()[:20]
        return self._make(command, (self.cache if csrc == CSRC else csrc) / f"{key}.o")

    def _make(self, command: list[str], target: Path) -> Path:
        if not target.exists():
            unfinished = target.with_suffix(f".{os.getpid()}")  # other test processes may be at it too
            result = subprocess.run(
                [COMPILER, *command, "-o", str(unfinished)], capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, result.stderr
            unfinished.replace(target)
        return target


@pytest.fixture(scope="session")
def builder(request: pytest.FixtureRequest) -> Builder:
    return Builder(request.config.cache.mkdir("emulation"))


def check(executable: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(executable), "--no-replays", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def assert_passes(executable: Path, *options: str) -> None:
    result = check(executable, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PASS" in result.stdout


@pytest.fixture(scope="session")
def plain(builder: Builder) -> Path:
    return builder.executable(["f32", "f64", "c128", "bf16"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_groups(plain: Path, dtype: str) -> None:
    assert_passes(plain, "--dtypes", dtype)


@pytest.mark.parametrize("seed", range(1, 5))
def test_other_orders_and_problems(plain: Path, seed: int) -> None:
    assert_passes(plain, "--small", "--seed", str(seed))


def test_waves_of_64(builder: Builder) -> None:
    executable = builder.executable(["f32", "bf16"], ["-DVBGEMM_WAVE_SIZE=64"])
    for seed in range(3):
        assert_passes(executable, "--small", "--seed", str(seed))


def test_sanitizers(builder: Builder) -> None:
    executable = builder.executable(["bf16"], SANITIZE)  # it has copies of every kind and both types of results
    for seed in range(2):
        assert_passes(executable, "--small", "--exact", "--seed", str(seed))


MISTAKES = {
    "a barrier too few": ("gpu/simt_tile.h", "    block_barrier();  // this step's data", "    // this step's data"),
    "a copy not waited for": ("gpu/simt_tile.h", "wait_copies<Cut::kStages - 2>()", "wait_copies<Cut::kStages - 1>()"),
    "a mask off by one": ("gpu/operand_copy.h", "i * Spread::kStep < limit", "i * Spread::kStep <= limit"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_caught(builder: Builder, tmp_path: Path, mistake: str) -> None:
    name, right, wrong = MISTAKES[mistake]
    csrc = tmp_path / "csrc"
    shutil.copytree(CSRC, csrc)
    text = (csrc / name).read_text()
    assert text.count(right) == 1, f"{name} no longer has the line that this test changes"
    (csrc / name).write_text(text.replace(right, wrong))
    result = check(builder.executable(["f32"], csrc=csrc), "--small")
    assert result.returncode != 0
    assert "FAIL" in result.stdout
