"""The GPU kernels' sources, compiled for the CPU (csrc/emulation) and put through the checks that run on a GPU."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jax_vbgemm import _core

CSRC = Path(__file__).resolve().parents[2] / "csrc"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-march=native", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ['-DVBGEMM_GPU_VENDOR_HEADER="emulation/gpu_vendor.h"']
CDNA = ["-DVBGEMM_WAVE_SIZE=64"]
RACES = ["-DVBGEMM_RACES"]  # of the whole executable; the kernels alone are instrumented
SANITIZE = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there")


class Builder:
    """Compiles what is not in the cache yet; an object's name there tells all that went into it."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def executable(
        self, kernels: Sequence[str], flags: Sequence[str] = (), csrc: Path = CSRC, machine: Sequence[str] = ()
    ) -> Path:
        """The check with some files of kernels; `flags` and `csrc` are theirs, the driver is the same for a machine."""
        flags = [*flags, *machine]
        parts = [("emulation/main.cc", machine, CSRC), ("emulation/fiber.cc", machine, CSRC)]
        instrument = ["-g1", "-fsanitize=thread"] if RACES[0] in flags else []
        parts += [(name, flags, csrc) for name in ("emulation/block.cc", "gpu/launch.cu")]
        kernels = ["add_shares", "add_scaled", "square_sums", *kernels]
        parts += [(f"gpu/{name}.cu", [*flags, *instrument], csrc) for name in kernels]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda part: self._built(["-c", "-x", "c++"], *part), parts))
        key = hashlib.sha256("".join(map(str, objects)).encode()).hexdigest()[:20]
        return self._make([*flags, *instrument, *map(str, objects)], self.cache / f"check_{key}")

    def _built(self, mode: list[str], name: str, flags: Sequence[str], csrc: Path) -> Path:
        options, source = [*FLAGS, *flags, *mode], [f"-I{csrc}", str(csrc / name)]
        # What the compiler will see, wherever it lies: a copy of the sources shares all objects but those it changes.
        content = self._run([*options, *source, "-E", "-P", "-o", "-"])
        key = hashlib.sha256(repr((COMPILER, options, content)).encode()).hexdigest()[:20]
        return self._make([*options, *source], self.cache / f"{key}.o")

    def _make(self, command: list[str], target: Path) -> Path:
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes want the same
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


@pytest.fixture(scope="session")
def builder(request: pytest.FixtureRequest) -> Builder:
    return Builder(request.config.cache.mkdir("emulation"))


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


def tiles_of(kind: str, tensor: bool) -> list[str]:
    """The tiles that are built for a kind on CDNA, as the check names them."""
    rows = [row for row in _core.tiles() if row[4] > 1 and row[7] == tensor and kind in row[5]]
    rows = [
        row for row in rows if row[6] not in ("m256_full", "t256_dots", "m256_dots")
    ]  # kernels that are NVIDIA's alone
    rows = [row for row in rows if not (tensor and max(row[1:3]) >= 4 * min(row[1:3]))]  # and so are far longer tiles
    assert rows
    return [f"{kind} {row[0]}/{row[4]}" for row in rows]


@pytest.fixture(scope="session")
def plain(builder: Builder) -> Path:
    return builder.executable(["simt_f32", "simt_f64", "simt_c128", "simt_bf16"])


@pytest.fixture(scope="session")
def tensor(builder: Builder) -> Path:
    return builder.executable(["tensor_f64", "tensor_bf16", "tensor_f16", "tensor_tf32", "tensor_tf32x3"])


# The same groups and tiles, on fewer and smaller problems: what the mistakes below are caught by.
SIZES = pytest.mark.parametrize(
    "size", [pytest.param(["--small"], id="small"), pytest.param([], id="full", marks=pytest.mark.slow)]
)


@SIZES
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_all_groups(plain: Path, kind: str, size: list[str]) -> None:
    assert_passes(plain, "--kinds", kind, *size)


@SIZES
@pytest.mark.parametrize("kind", ["float64", "bfloat16", "tf32x3"])
def test_all_groups_on_tensor_cores(tensor: Path, kind: str, size: list[str]) -> None:
    assert_passes(tensor, "--kinds", kind, *size)


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]


@pytest.mark.parametrize("seed", SEEDS)
def test_other_orders_and_problems(plain: Path, tensor: Path, seed: int) -> None:
    assert_passes(plain, "--small", "--seed", str(seed))
    assert_passes(tensor, "--small", "--seed", str(seed))


@pytest.fixture(scope="session")
def cdna(builder: Builder) -> Path:
    """As the ROCm backend has them: waves of 64, CDNA's stages and steps."""
    kernels = ["simt_f32", "simt_f64", "simt_c64", "simt_c128", "simt_bf16", "simt_f16"]
    return builder.executable(kernels, machine=CDNA)


@pytest.fixture(scope="session")
def matrix_units(builder: Builder) -> Path:
    kernels = ["simt_f32", "mfma_f32", "mfma_f64", "mfma_bf16", "mfma_f16", "mfma_tf32"]  # one check is simt_f32's
    return builder.executable(kernels, machine=CDNA)


@SIZES
@pytest.mark.parametrize("kind", ["float32", "float64", "complex64", "complex128", "bfloat16", "float16"])
def test_all_groups_on_cdna(cdna: Path, kind: str, size: list[str]) -> None:
    assert_passes(cdna, "--kinds", kind, *size, tiles=tiles_of(kind, tensor=False))


@SIZES
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16", "tf32", "tf32x3"])
def test_all_groups_on_matrix_units(matrix_units: Path, kind: str, size: list[str]) -> None:
    assert_passes(matrix_units, "--kinds", kind, *size, tiles=tiles_of(kind, tensor=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_other_orders_and_problems_on_cdna(cdna: Path, matrix_units: Path, seed: int) -> None:
    assert_passes(cdna, "--small", "--seed", str(seed))
    assert_passes(matrix_units, "--small", "--seed", str(seed))


@pytest.mark.parametrize(
    ("family", "machine"),
    [("simt_bf16", []), ("simt_f32", []), ("tensor_bf16", []), ("simt_bf16", CDNA), ("mfma_bf16", CDNA)],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_sanitizers(builder: Builder, family: str, machine: list[str], seed: int) -> None:
    executable = builder.executable([family], SANITIZE, machine=machine)  # copies of every kind, both types of results
    assert_passes(executable, "--small", "--exact", "--seed", str(seed))


@pytest.mark.parametrize(
    ("family", "machine"),
    [
        ("simt_f32", []),
        ("simt_f64", []),
        ("tensor_f64", []),
        ("tensor_tf32x3", []),
        ("simt_f32", CDNA),
        ("mfma_bf16", CDNA),
    ],
)
def test_races(builder: Builder, family: str, machine: list[str]) -> None:
    assert_passes(builder.executable([family], machine=[*machine, *RACES]), "--small", "--exact", "--races")


@pytest.mark.parametrize(
    "mistake", ["a barrier too few", "no barrier for matrix units", "a step overwritten too early"]
)
def test_races_are_seen(builder: Builder, tmp_path: Path, mistake: str) -> None:
    machine = [*machine_of(MISTAKES[mistake][0]), *RACES]
    result = check(changed(builder, tmp_path, mistake, machine), "--small")
    assert "WARNING: ThreadSanitizer: data race" in result.stderr


MISTAKES = {
    "no barrier for matrix units": (
        "mfma_f16",
        "m128_light",
        "mfma_tile",
        "      block_barrier();  // this step's",
        "      // this step's",
    ),
    "a step overwritten too early": (
        "mfma_f16",
        "m128_light",
        "mfma_tile",
        "      block_barrier();  // all have",
        "      // all have",
    ),
    "rows of sums confused": ("mfma_f64", "m128_light", "mfma_product", "4 * r + lane / 16", "4 * (lane / 16) + r"),
    "a piece too many": (
        "mfma_f32",
        "m128_light",
        "mfma_copy",
        "item + e < items ? pieces_",
        "item + e <= items ? pieces_",
    ),
    "a barrier too few": (
        "simt_f32",
        "t128_light",
        "simt_tile",
        "    block_barrier();  // this step's",
        "    // this step's",
    ),
    "blocks left out between launches": ("simt_f32", "t128_light", "launch.cu", "begin += most", "begin += most + 1"),
    "a copy not waited for": (
        "simt_f32",
        "t128_light",
        "simt_tile",
        "wait_copies<Cut::kStages - 2>()",
        "wait_copies<Cut::kStages - 1>()",
    ),
    "a mask off by one": (
        "simt_f32",
        "t128_light",
        "operand_copy",
        "i * Spread::kStep < limit",
        "i * Spread::kStep <= limit",
    ),
    "a part of B overwritten too early": (
        "simt_f32",
        "t128_rows",
        "row_tile",
        "        block_barrier();  // nobody reads",
        "        // nobody reads",
    ),
    "a step behind K's end": (
        "simt_f32",
        "t256_dots",
        "dot_tile",
        "k + n * kWaveSize + lane < depth",
        "k + n * kWaveSize + lane <= depth",
    ),
    "a step of B read too early": (
        "simt_f64",
        "t256_dots",
        "dot_tile",
        "    block_barrier();  // this step's",
        "    // this step's",
    ),
    "an element behind K's end on tensor cores": (
        "tensor_f64",
        "m256_dots",
        "tensor_dot_tile",
        "if (e < count)",
        "if (e <= count)",
    ),
    "a vector behind K's end": ("tensor_f64", "m256_dots", "tensor_dot_tile", "if (left > 0)", "if (left >= 0)"),
    "a step of B multiplied too early": (
        "tensor_tf32",
        "m256_dots",
        "tensor_dot_tile",
        "    block_barrier();  // this step's",
        "    // this step's",
    ),
    "steps of B confused": ("tensor_bf16", "m256_dots", "tensor_dot_cut", "step % 8 / 2 * 8", "(step % 8 / 2 ^ 1) * 8"),
    "lanes' sums confused": ("simt_f64", "t256_dots", "lane_sums", "upper ? kHalf : 0", "upper ? 0 : kHalf"),
    "a real scale times both parts": ("simt_c128", "t128_light", "epilogue", "if (scale.imag != 0) return", "return"),
    "an operand as a result": ("simt_f32", "t128_light", "tile_place", "lane == kC ? parameters.num_operands : 0", "0"),
    "a row too many": (
        "simt_f32",
        "t128_rows",
        "row_store",
        "sum[i][j], to, mine < rows_",
        "sum[i][j], to, mine <= rows_",
    ),
    "a column too many": ("simt_f32", "t128_rows", "row_store", "j + v < stage_.cols && mine", "mine"),
    "a tile by another's code": ("simt_f32", "t128_light", "tile_kernel", "code >= kMiddle", "code > kMiddle"),
    "a pass not waited for": ("simt_f32", "t128_rows", "row_stream", "passes_ > kFirst + 1", "passes_ > kFirst"),
    "a pass overwritten too early": (
        "simt_f32",
        "t128_rows",
        "row_tile",
        "    wave_barrier();  // all lanes",
        "    // all lanes",
    ),
    "vectors of rows confused": (
        "simt_f64",
        "t128_rows",
        "swizzle",
        "swizzled ? swizzled_vector(number)",
        "swizzled ? number",
    ),
    "rows of a column confused": (
        "simt_f32",
        "t128_rows",
        "row_stream",
        "k * stride + vector * kVector, true",
        "k * stride, true",
    ),
    "steps of a column confused": (
        "tensor_bf16",
        "m128_rows",
        "tensor_row_tile",
        "2 * matrix + row % 2;",
        "2 * matrix;",
    ),
    "rows of tensor cores confused": (
        "tensor_f64",
        "m128_rows",
        "tensor_row_tile",
        "(8 * half + g) * stage",
        "(8 * half + (g ^ 1)) * stage",
    ),
    "rows of C confused": (
        "simt_bf16",
        "t128_rows",
        "row_store",
        "mine.place[turn][v / kVector]",
        "mine.place[turn][0]",
    ),
    "no barrier for tensor cores": (
        "tensor_tf32x3",
        "m128_light",
        "tensor_tile",
        "    block_barrier();  // this step's",
        "    // this step's",
    ),
    "sums read too early": (
        "tensor_tf32x3",
        "m128_light",
        "tensor_store",
        "  block_barrier();  // all of them",
        "  // all of them",
    ),
    "a shift off by one": (
        "tensor_bf16",
        "m128_light",
        "tensor_copy",
        "words[w + 1], shift % 2 * 16",
        "words[w + 1], (shift + 1) % 2 * 16",
    ),
    "a kernel that does not wait for the one ahead": (
        "simt_f32",
        "t128_light",
        "simt_tile",
        "  await_previous_kernel();\n",
        "",
    ),
    "a wave that does not wait for the one ahead": (
        "simt_f32",
        "t128_light",
        "simt_tile",
        "  await_previous_kernel();\n",
        "  if (thread_index() < kWaveSize) await_previous_kernel();\n",
    ),
    "arrays added before they are there": (
        "simt_f32",
        "t128_light",
        "add_scaled",
        "    await_previous_kernel();\n",
        "",
    ),
    "a chunk's last elements left out": ("simt_f32", "t128_light", "add_scaled", "count - whole, scales", "0, scales"),
    "an array's first chunk left out": ("simt_f32", "t128_light", "chunks", "[middle] <= block", "[middle] < block"),
    "squares summed before they are there": (
        "simt_f32",
        "t128_light",
        "square_sums",
        "    await_previous_kernel();\n    const auto [member",
        "    const auto [member",
    ),
    "an array's last square left out": ("simt_f32", "t128_light", "square_sums", "at < count", "at < count - 1"),
    "a chunk's sum left out": ("simt_f32", "t128_light", "square_sums", "i < blocks[1]", "i < blocks[1] - 1"),
    "sums of threads added too early": ("simt_f32", "t128_light", "square_sums", "    block_barrier();\n", ""),
    "sums taken before they are there": (
        "simt_f32",
        "t128_light",
        "add_shares",
        "    await_previous_kernel();\n    block_barrier();",
        "    block_barrier();",
    ),
    "small x big left out": (
        "tensor_tf32x3",
        "m128_light",
        "tensor_product",
        "multiply_tf32(small_a[i]",
        "multiply_tf32(big_a[i]",
    ),
}


def machine_of(kernels: str) -> list[str]:
    return CDNA if kernels.startswith("mfma") else []


def changed(builder: Builder, folder: Path, mistake: str, machine: Sequence[str]) -> Path:
    """The check of one kernel, with a mistake."""
    kernels, kernel, stem, right, wrong = MISTAKES[mistake]
    name = f"gpu/{stem}" + ("" if "." in stem else ".h")
    csrc = folder / "csrc"
    shutil.copytree(CSRC, csrc)
    text = (csrc / name).read_text()
    assert text.count(right) == 1, f"{name} no longer has the line that this test changes"
    (csrc / name).write_text(text.replace(right, wrong))
    leave_one(csrc / f"gpu/{kernels}.cu", kernel)
    return builder.executable([kernels], csrc=csrc, machine=machine)


def leave_one(file: Path, kernel: str) -> None:
    """Takes all kernels but one out of a file: each costs seconds of compilation."""
    define = "DEFINE_ROWS" if kernel in ("t128_rows", "t128_wide_rows") else "DEFINE"
    text = file.read_text()
    lists = re.findall(r"^VBGEMM_\w*KERNELS\w*\((\w+)(?:, (\w+))?\)$", text, re.MULTILINE)
    kind = dict(lists)[define] or file.stem.split("_")[1]
    text = re.sub(r"^VBGEMM_.*$", "", text, flags=re.MULTILINE)
    file.write_text(f"{text}{define}({kernel}, {kind})\n")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_caught(builder: Builder, tmp_path: Path, mistake: str) -> None:
    result = check(changed(builder, tmp_path, mistake, machine_of(MISTAKES[mistake][0])), "--small")
    assert result.returncode != 0
    assert "FAIL" in result.stdout


@pytest.mark.parametrize(("kernels", "kernel"), sorted({mistake[:2] for mistake in MISTAKES.values()}))
def test_each_of_these_kernels_passes_without_one(builder: Builder, tmp_path: Path, kernels: str, kernel: str) -> None:
    csrc = tmp_path / "csrc"
    shutil.copytree(CSRC, csrc)
    leave_one(csrc / f"gpu/{kernels}.cu", kernel)
    assert_passes(builder.executable([kernels], csrc=csrc, machine=machine_of(kernels)), "--small")
