"""The CPU kernel by its stand-alone driver, built here: under sanitizers, for each instruction set, and for aarch64."""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from compiled import Compiled
from slow_cases import slow_except

ROOT = Path(__file__).parents[2]
CPU = ROOT / "csrc" / "cpu"
INCLUDES = (f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests' / 'native'}")
DRIVER = ROOT / "benchmarks" / "cpu_kernel_bench.cc"
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")
SANITIZED = ("-O1", "-g1", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
# Of kernels under sanitizers: -O1 takes three times as long to compile, and the checks run hardly faster with it.
UNOPTIMIZED = ("-O0",)

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(platform.system() != "Linux", reason="the driver guards its memory as Linux does it"),
]


# The kernels of each instruction set that x86-64 has, and the flags that they are compiled with.
KERNELS = {"portable": (), "avx2": AVX2, "avx512": AVX512}
X86 = platform.machine() == "x86_64"


def object_of(compiled: Compiled, source: Path, options: Sequence[str]) -> Path:
    common = ["-std=c++17", "-fno-math-errno", "-Wall", "-Wextra", "-pthread", *options]
    return compiled.object(common, [*INCLUDES, str(source)])


def without_kernels(cache: Path, isas: Sequence[str], more: str = "") -> Path:
    """A source file in which these instruction sets have names but no kernels; compiling kernels takes minutes."""
    names = [f'const Kernels k{isa.capitalize()}Kernels = {{"{isa}", nullptr, nullptr, nullptr}};' for isa in isas]
    text = "\n".join(['#include "cpu/kernels.h"', '#include "cpu/walk.h"', "namespace vbgemm {", *names, "}", more, ""])
    file = cache / f"without_{'_'.join(isas)}.cc"
    if not file.exists() or file.read_text() != text:
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(file)  # other processes may be reading it
    return file


def build(
    cache: Path,
    flags: Sequence[str],
    *,
    compiler: str = "g++",
    isa: str,
    x86: bool = False,
    of_kernels: Sequence[str] = (),
) -> Path:
    """The driver with the kernels of one instruction set, else by the build lines at its top; `x86`: for machines that
    have several, of which VBGEMM_CPU_ISA has to choose that one; `of_kernels`: more flags for the kernels alone."""
    compiled = Compiled(cache, compiler)
    walks = ("walk", "group_walk", "parallel_for", "isa")
    sources: dict[Path, Sequence[str]] = {**{CPU / f"{name}.cc": () for name in walks}, DRIVER: ()}
    sources[CPU / f"kernels_{isa}.cc"] = (*KERNELS[isa], *of_kernels)
    if x86:
        sources[without_kernels(cache, [other for other in KERNELS if other != isa])] = ()
    else:
        flags = [*flags, "-DVBGEMM_PORTABLE"]

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: object_of(compiled, source, [*flags, *sources[source]]), sources))
    return compiled.program(["-pthread", *flags], objects)


def runs(cache: Path, isa: str) -> bool:
    """Whether this machine can run an instruction set, as the choice of kernels sees it."""
    if not X86:
        return isa == "portable"
    main = '#include <cstdio>\nint main() { std::printf("%s\\n", vbgemm::isa()); }'
    compiled = Compiled(cache, "g++")
    sources = [CPU / "isa.cc", without_kernels(cache, list(KERNELS), main)]
    program = compiled.program([], [object_of(compiled, source, ()) for source in sources])
    return run([program], VBGEMM_CPU_ISA=isa) == f"{isa}\n"


def run(command: Sequence[str | Path], **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def cache(request: pytest.FixtureRequest) -> Path:
    return request.config.cache.mkdir("cpu_kernel")


# Kernels take more than a minute to compile under sanitizers.
@pytest.fixture(scope="module", params=slow_except(KERNELS, [], turns="CPU kernels of"))
def checked(cache: Path, request: pytest.FixtureRequest) -> Callable[..., str]:
    """The driver under AddressSanitizer and UndefinedBehaviorSanitizer, to be called with its arguments."""
    isa = request.param
    if not runs(cache, isa):
        pytest.skip(f"this machine cannot run {isa}")
    flags = [*SANITIZED, "-fsanitize=address,undefined"]
    program = build(cache, flags, isa=isa, x86=X86, of_kernels=UNOPTIMIZED)

    def checked(*arguments: str) -> str:
        output = run([program, *arguments], VBGEMM_CPU_ISA=isa)
        assert f"isa: {isa}\n" in output
        return output

    return checked


# Each round has every arithmetic, type of results and sort of call; more rounds have more sizes and layouts.
@pytest.mark.parametrize("rounds", [1, 12])
def test_results_and_epilogues_on_each_instruction_set(checked: Callable[..., str], rounds: int):
    assert f"{rounds} rounds, 0 failures" in checked("check", str(rounds))


def test_groups_whose_sizes_are_data_on_each_instruction_set(checked: Callable[..., str]):
    assert "groups: 10 rounds, 0 failures" in checked("groups", "10")


@pytest.mark.slow(turn="CPU kernels in threads")
def test_concurrent_calls_have_no_data_race(cache: Path):
    # Threads meet in the walks, which all instruction sets share.
    driver = build(cache, [*SANITIZED, "-fsanitize=thread"], isa="portable", of_kernels=UNOPTIMIZED)
    # TSan needs the address space as it knows it
    setarch = shutil.which("setarch")
    prefix: list[str | Path] = [setarch, platform.machine(), "-R"] if setarch else []
    assert ", 0 wrong" in run([*prefix, driver, "stress", "2"])
    assert "groups: 1 rounds, 0 failures" in run([*prefix, driver, "groups", "1"])


@pytest.mark.slow(turn="CPU kernels of aarch64")
def test_neon_under_qemu(cache: Path):
    compiler = shutil.which("aarch64-linux-gnu-g++")
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if not compiler or not qemu:
        pytest.skip("needs an aarch64 cross compiler and qemu (Debian: g++-aarch64-linux-gnu, qemu-user)")
    driver = build(cache, ["-O2", "-static"], compiler=compiler, isa="portable")
    assert "5 rounds, 0 failures" in run([qemu, driver, "check", "5"])
