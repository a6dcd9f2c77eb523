"""The CPU kernel by its stand-alone driver, built here: under sanitizers, for each instruction set, and for aarch64."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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


def build(folder: Path, flags: Sequence[str], *, compiler: str = "g++", x86: bool | None = None) -> Path:
    """The driver in `folder`, by the build lines at its top."""
    x86 = platform.machine() == "x86_64" if x86 is None else x86
    portable = ("walk", "group_walk", "packed_groups", "share", "isa", "kernels_portable")
    sources: dict[Path, Sequence[str]] = {**{CPU / f"{name}.cc": () for name in portable}, DRIVER: ()}
    if x86:
        sources |= {CPU / "kernels_avx2.cc": AVX2, CPU / "kernels_avx512.cc": AVX512}
    common = [compiler, "-std=c++17", "-fno-math-errno", "-Wall", "-Wextra", "-pthread", f"-I{ROOT / 'csrc'}", *flags]

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        subprocess.run([*common, *sources[source], "-c", source, "-o", target], check=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    driver = folder / "driver"
    subprocess.run([*common, *objects, "-o", driver], check=True)
    return driver


def run(command: Sequence[str | Path], **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver under AddressSanitizer and UndefinedBehaviorSanitizer."""
    return build(tmp_path_factory.mktemp("checked"), [*SANITIZED, "-fsanitize=address,undefined"])


@pytest.mark.parametrize("isa", [pytest.param("portable", marks=pytest.mark.slow), "avx2", "avx512"])
def test_results_and_epilogues_on_each_instruction_set(checked: Path, isa: str):
    output = run([checked, "check", "10"], VBGEMM_CPU_ISA=isa)
    if f"isa: {isa}\n" not in output:
        pytest.skip(f"this machine cannot run {isa}")
    assert "10 rounds, 0 failures" in output


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_groups_whose_sizes_are_data_on_each_instruction_set(checked: Path, isa: str):
    output = run([checked, "groups", "10"], VBGEMM_CPU_ISA=isa)
    if f"isa: {isa}\n" not in output:
        pytest.skip(f"this machine cannot run {isa}")
    assert "groups: 10 rounds, 0 failures" in output


def test_concurrent_calls_have_no_data_race(tmp_path: Path):
    driver = build(tmp_path, [*SANITIZED, "-fsanitize=thread"])
    # TSan needs the address space as it knows it
    setarch = shutil.which("setarch")
    prefix: list[str | Path] = [setarch, platform.machine(), "-R"] if setarch else []
    assert ", 0 wrong" in run([*prefix, driver, "stress", "3"])
    assert "groups: 3 rounds, 0 failures" in run([*prefix, driver, "groups", "3"])


@pytest.mark.slow
def test_neon_under_qemu(tmp_path: Path):
    compiler = shutil.which("aarch64-linux-gnu-g++")
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if not compiler or not qemu:
        pytest.skip("needs an aarch64 cross compiler and qemu (Debian: g++-aarch64-linux-gnu, qemu-user)")
    driver = build(tmp_path, ["-O2", "-static"], compiler=compiler, x86=False)
    assert "5 rounds, 0 failures" in run([qemu, driver, "check", "5"])
