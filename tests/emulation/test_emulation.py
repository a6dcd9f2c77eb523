"""The GPU kernels, compiled for the CPU (tests/native/emulation), pass the checks that run on a GPU."""

import shutil
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from emulated_check import CDNA, COMPILER, RACES, SANITIZE, Builder, assert_passes, some_kernels
from slow_cases import slow_except

from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there")


def tiles_of(kind: str, tensor: bool) -> list[str]:
    """The tiles that are built for an arithmetic on CDNA, by their names in the check."""
    compiled = "float32" if kind == "tf32x3" else kind  # CDNA's matrix units form tf32x3 as float32
    rows = [row for row in COMPILED_TILES if row.tensor == tensor and compiled in row.k_steps["rocm"]]
    assert rows
    return [f"{kind} {row.name}/{row.threads}" for row in rows]


# How the files of kernels of arithmetics whose operands are bytes end.
OF_A_BYTE = {
    "int8": "s8",
    "float8_e4m3fn_e5m2": "e4m3_e5m2",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float8_e5m2_e4m3fn": "e5m2_e4m3",
}
assert set(OF_A_BYTE) == {one.name for one in ARITHMETICS.values() if one.bytes == 1}


def slow(turns: str, *cases: tuple[list[str], list[str]]) -> list[ParameterSet]:
    return [pytest.param(*case, marks=pytest.mark.slow(turn=f"{turns} {case}")) for case in cases]


def kernels_id(value: list[str]) -> str:
    return "cdna" if value == CDNA else "+".join(value) or "nvidia"


# One or two kernels of most families, compiled alone: all kernels of an arithmetic take up to half a minute. The others
# run in slow tests.
OF_EACH_FAMILY = ["simt_s8:t128_light", "rows_bf16:t128_rows", "tensor_s8:m128_light", "tensor_light_bf16:m128_light"]
OF_EACH_FAMILY += ["tensor_bf16:m256_dots", "tensor_bf16:m128_heavy", "tensor_aligned_bf16"]


def test_a_kernel_of_each_family(builder: Builder, tmp_path: Path) -> None:
    # -O1 takes half as long again to compile, and the check runs no faster with it.
    assert_passes(some_kernels(builder, tmp_path, OF_EACH_FAMILY, ["-Og"]), "--small")


SEEDS = pytest.mark.parametrize("seed", range(1, 6))  # of other orders of threads and other problems


# The tests of some files have the same turn, as they have the same program.
FILES = {
    **{kind: [f"simt_{kind}", f"rows_{kind}"] for kind in ("f32", "f64", "bf16")},
    "c128": ["simt_c128"],
    **{
        f"tensor {kind}": [f"tensor_{kind}", f"tensor_light_{kind}"]
        for kind in ("f64", "bf16", "f16", "tf32", "tf32x3")
    },
}
ALL_FILES = pytest.mark.parametrize("files", slow_except(FILES, [], turns="all of"))


@ALL_FILES
def test_all_groups(builder: Builder, files: str) -> None:
    assert_passes(builder.executable(FILES[files]))


@SEEDS
@ALL_FILES
def test_other_orders_and_problems(builder: Builder, files: str, seed: int) -> None:
    assert_passes(builder.executable(FILES[files]), "--small", "--seed", str(seed))


@pytest.mark.parametrize("tensor", [False, True], ids=["threads", "tensor cores"])
@pytest.mark.parametrize("kind", slow_except(OF_A_BYTE, [], turns="bytes"))
def test_all_groups_of_types_of_a_byte(builder: Builder, kind: str, tensor: bool) -> None:
    rows = [row for row in COMPILED_TILES if row.tensor == tensor and kind in row.k_steps["cuda"]]
    tiles = [f"{kind} {row.name}/{row.threads}" for row in rows]
    files = [f"{'tensor' if tensor else 'simt'}_{OF_A_BYTE[kind]}"]
    assert_passes(builder.executable(files), "--kinds", kind, tiles=tiles)


# The kernels as the ROCm backend builds them (waves of 64, CDNA's stages and K steps), by whether they run on matrix
# units and by the kind that they compute.
OF_CDNA = {
    (False, "float32"): ["simt_f32", "rows_f32"],
    (False, "complex64"): ["simt_c64"],
    (False, "bfloat16"): ["simt_bf16", "rows_bf16"],
    (False, "float64"): ["simt_f64", "rows_f64"],
    (False, "complex128"): ["simt_c128"],
    (False, "float16"): ["simt_f16", "rows_f16"],
    (False, "float8_e4m3fn_e5m2"): ["simt_e4m3_e5m2"],
    (False, "int8"): ["simt_s8"],
    (True, "float32"): ["mfma_f32"],
    (True, "bfloat16"): ["mfma_bf16"],
    (True, "float64"): ["mfma_f64"],
    (True, "float16"): ["mfma_f16"],
    (True, "tf32"): ["mfma_tf32"],
    (True, "tf32x3"): ["mfma_f32"],
}
ALL_OF_CDNA = pytest.mark.parametrize(("tensor", "kind"), slow_except(OF_CDNA, [], turns="cdna"))


def of_cdna(builder: Builder, tensor: bool, kind: str) -> Path:
    files = dict.fromkeys(("simt_f32", *OF_CDNA[tensor, kind]))  # one check is simt_f32's
    return builder.executable(list(files), machine=CDNA)


@ALL_OF_CDNA
def test_all_groups_on_cdna(builder: Builder, tensor: bool, kind: str) -> None:
    assert_passes(of_cdna(builder, tensor, kind), "--kinds", kind, tiles=tiles_of(kind, tensor))


@SEEDS
@ALL_OF_CDNA
def test_other_orders_and_problems_on_cdna(builder: Builder, tensor: bool, kind: str, seed: int) -> None:
    assert_passes(of_cdna(builder, tensor, kind), "--kinds", kind, "--small", "--seed", str(seed))


# Files of kernels, or file:kernel for one kernel alone. Instrumented, a file takes up to a minute to compile.
@pytest.mark.parametrize(
    ("kernels", "machine"),
    slow(
        "sanitized",
        (["tensor_f64:m128_heavy"], []),
        (["simt_e4m3_e5m2"], []),
        (["tensor_s8"], []),
        (["mfma_bf16"], CDNA),
        (["simt_bf16", "rows_bf16"], []),
        (["simt_f32", "rows_f32"], []),
        (["tensor_bf16", "tensor_light_bf16", "tensor_aligned_bf16"], []),
        (["tensor_e4m3_e5m2"], []),
        (["simt_bf16", "rows_bf16"], CDNA),
    ),
    ids=kernels_id,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_sanitizers(builder: Builder, tmp_path: Path, kernels: list[str], machine: list[str], seed: int) -> None:
    # copies of every kind, both types of results
    executable = some_kernels(builder, tmp_path, kernels, SANITIZE, machine=machine)
    assert_passes(executable, "--small", "--exact", "--seed", str(seed))


@pytest.mark.parametrize(
    ("kernels", "machine"),
    slow(
        "races of",
        (["mfma_bf16"], CDNA),
        (["simt_f32", "rows_f32"], []),
        (["simt_f64", "rows_f64"], []),
        (["tensor_f64", "tensor_light_f64"], []),
        (["tensor_tf32x3", "tensor_light_tf32x3"], []),
        (["tensor_s8"], []),
        (["simt_f32", "rows_f32"], CDNA),
    ),
    ids=kernels_id,
)
def test_races(builder: Builder, tmp_path: Path, kernels: list[str], machine: list[str]) -> None:
    executable = some_kernels(builder, tmp_path, kernels, machine=[*machine, *RACES])
    assert_passes(executable, "--small", "--exact", "--races")
