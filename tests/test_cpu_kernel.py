"""The CPU kernel by its stand-alone driver, built here: under sanitizers, for each instruction set, and for aarch64."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from compiled import Compiled

ROOT = Path(__file__).parent.parent
CPU = ROOT / "csrc" / "cpu"
DRIVER = ROOT / "benchmarks" / "cpu_kernel_bench.cc"
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")
SANITIZED = ("-O1", "-g1", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(platform.system() != "Linux", reason="the driver guards its memory as Linux does it"),
]


def build(cache: Path, flags: Sequence[str], *, compiler: str = "g++", x86: bool) -> Path:
    """The driver, by the build lines at its top; `x86`: with the kernels of AVX2 and AVX-512."""
    compiled = Compiled(cache, compiler)
    portable = ("walk", "group_walk", "packed_groups", "parallel_for", "isa", "kernels_portable")
    sources: dict[Path, Sequence[str]] = {**{CPU / f"{name}.cc": () for name in portable}, DRIVER: ()}
    if x86:
        sources |= {CPU / "kernels_avx2.cc": AVX2, CPU / "kernels_avx512.cc": AVX512}
    common = ["-std=c++17", "-fno-math-errno", "-Wall", "-Wextra", "-pthread", *flags]
    if not x86:
        common.append("-DVBGEMM_PORTABLE")

    def object_of(source: Path) -> Path:
        return compiled.object([*common, *sources[source]], [f"-I{ROOT / 'csrc'}", str(source)])

    with ThreadPoolExecutor(2) as pool:
        return compiled.program(common, list(pool.map(object_of, sources)))


def run(command: Sequence[str | Path], **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def cache(request: pytest.FixtureRequest) -> Path:
    return request.config.cache.mkdir("cpu_kernel")


@pytest.fixture(scope="module")
def checked(cache: Path) -> Path:
    """The driver under AddressSanitizer and UndefinedBehaviorSanitizer."""
    x86 = platform.machine() == "x86_64"
    return build(cache, [*SANITIZED, "-fsanitize=address,undefined"], x86=x86)


@pytest.mark.parametrize("isa", [pytest.param("portable", marks=pytest.mark.slow), "avx2", "avx512"])
def test_results_and_epilogues_on_each_instruction_set(checked: Path, isa: str):
    output = run([checked, "check", "6"], VBGEMM_CPU_ISA=isa)
    if f"isa: {isa}\n" not in output:
        pytest.skip(f"this machine cannot run {isa}")
    assert "6 rounds, 0 failures" in output


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_groups_whose_sizes_are_data_on_each_instruction_set(checked: Path, isa: str):
    output = run([checked, "groups", "10"], VBGEMM_CPU_ISA=isa)
    if f"isa: {isa}\n" not in output:
        pytest.skip(f"this machine cannot run {isa}")
    assert "groups: 10 rounds, 0 failures" in output


def test_concurrent_calls_have_no_data_race(cache: Path):
    # Threads meet in the walks, which all instruction sets share.
    driver = build(cache, [*SANITIZED, "-fsanitize=thread"], x86=False)
    # TSan needs the address space as it knows it
    setarch = shutil.which("setarch")
    prefix: list[str | Path] = [setarch, platform.machine(), "-R"] if setarch else []
    assert ", 0 wrong" in run([*prefix, driver, "stress", "3"])
    assert "groups: 3 rounds, 0 failures" in run([*prefix, driver, "groups", "3"])


@pytest.mark.slow
def test_neon_under_qemu(cache: Path):
    compiler = shutil.which("aarch64-linux-gnu-g++")
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if not compiler or not qemu:
        pytest.skip("needs an aarch64 cross compiler and qemu (Debian: g++-aarch64-linux-gnu, qemu-user)")
    driver = build(cache, ["-O2", "-static"], compiler=compiler, x86=False)
    assert "5 rounds, 0 failures" in run([qemu, driver, "check", "5"])
