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

    def executable(self, kernels: Sequence[str], flags: Sequence[str] = (), csrc: Path = CSRC) -> Path:
        """The check with some files of kernels; `flags` and `csrc` are theirs, the driver is always the same."""
        parts = [("emulation/main.cc", [], CSRC), ("emulation/fiber.cc", [], CSRC)]
        parts += [(name, flags, csrc) for name in ("emulation/block.cc", "gpu/launch.cu", "gpu/add_shares.cu")]
        parts += [(f"gpu/{name}.cu", flags, csrc) for name in kernels]
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
    return builder.executable(["simt_f32", "simt_f64", "simt_c128", "simt_bf16"])


@pytest.fixture(scope="session")
def tensor(builder: Builder) -> Path:
    return builder.executable(["tensor_f64", "tensor_bf16", "tensor_f16", "tensor_tf32", "tensor_tf32x3"])


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_all_groups(plain: Path, kind: str) -> None:
    assert_passes(plain, "--kinds", kind)


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "tf32x3"])
def test_all_groups_on_tensor_cores(tensor: Path, kind: str) -> None:
    assert_passes(tensor, "--kinds", kind)


@pytest.mark.parametrize("seed", range(1, 5))
def test_other_orders_and_problems(plain: Path, tensor: Path, seed: int) -> None:
    assert_passes(plain, "--small", "--seed", str(seed))
    assert_passes(tensor, "--small", "--seed", str(seed))


def test_waves_of_64(builder: Builder) -> None:
    executable = builder.executable(["simt_f32", "simt_bf16"], ["-DVBGEMM_WAVE_SIZE=64"])
    for seed in range(3):
        assert_passes(executable, "--small", "--seed", str(seed))


@pytest.mark.parametrize("family", ["simt_bf16", "tensor_bf16"])
def test_sanitizers(builder: Builder, family: str) -> None:
    executable = builder.executable([family], SANITIZE)  # it has copies of every kind and both types of results
    for seed in range(2):
        assert_passes(executable, "--small", "--exact", "--seed", str(seed))


MISTAKES = {
    "a barrier too few": ("simt_f32", "simt_tile", "    block_barrier();  // this step's", "    // this step's"),
    "a copy not waited for": (
        "simt_f32",
        "simt_tile",
        "wait_copies<Cut::kStages - 2>()",
        "wait_copies<Cut::kStages - 1>()",
    ),
    "a mask off by one": ("simt_f32", "operand_copy", "i * Spread::kStep < limit", "i * Spread::kStep <= limit"),
    "no barrier for tensor cores": (
        "tensor_tf32x3",
        "tensor_tile",
        "    block_barrier();  // this step's",
        "    // this step's",
    ),
    "sums read too early": (
        "tensor_tf32x3",
        "tensor_tile",
        "    block_barrier();  // all of them",
        "    // all of them",
    ),
    "a shift off by one": (
        "tensor_bf16",
        "tensor_copy",
        "words[w + 1], shift % 2 * 16",
        "words[w + 1], (shift + 1) % 2 * 16",
    ),
    "small x big left out": ("tensor_tf32x3", "tensor_product", "multiply_tf32(small_a[i]", "multiply_tf32(big_a[i]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_caught(builder: Builder, tmp_path: Path, mistake: str) -> None:
    kernels, stem, right, wrong = MISTAKES[mistake]
    name = f"gpu/{stem}.h"
    csrc = tmp_path / "csrc"
    shutil.copytree(CSRC, csrc)
    text = (csrc / name).read_text()
    assert text.count(right) == 1, f"{name} no longer has the line that this test changes"
    (csrc / name).write_text(text.replace(right, wrong))
    result = check(builder.executable([kernels], csrc=csrc), "--small")
    assert result.returncode != 0
    assert "FAIL" in result.stdout
