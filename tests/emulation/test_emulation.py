"""The GPU kernels, compiled for the CPU (csrc/emulation), pass the checks that run on a GPU."""

import shutil
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from emulated_check import CDNA, COMPILER, RACES, SANITIZE, Builder, assert_passes, some_kernels
from slow_cases import slow_except

from jax_vbgemm._src.arithmetic import ARITHMETICS
from jax_vbgemm._src.compiled_tiles import COMPILED_TILES

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
BYTES = pytest.mark.parametrize("kind", slow_except(OF_A_BYTE, [], turns="bytes"))


def slow(*cases: tuple[list[str], list[str]]) -> list[ParameterSet]:
    return [pytest.param(*case, marks=pytest.mark.slow(turn=f"instrumented {case}")) for case in cases]


def kernels_id(value: list[str]) -> str:
    return "cdna" if value == CDNA else "+".join(value) or "nvidia"


# One or two kernels of most families, compiled alone: all kernels of an arithmetic take up to half a minute. Others run
# in test_sanitizers, those of waves of 64 in slow tests alone.
OF_EACH_FAMILY = ["simt_s8:t128_light", "rows_bf16:t128_rows", "tensor_s8:m128_light", "tensor_light_bf16:m128_light"]
OF_EACH_FAMILY += ["tensor_bf16:m256_dots", "tensor_bf16:m128_heavy"]


def test_a_kernel_of_each_family(builder: Builder, tmp_path: Path) -> None:
    assert_passes(some_kernels(builder, tmp_path, OF_EACH_FAMILY), "--small")


# The same groups and tiles, on fewer and smaller problems, with which the planted mistakes are found.
SIZES = pytest.mark.parametrize("size", [[], ["--small"]], ids=["full", "small"])


@SIZES
@pytest.mark.parametrize("files", slow_except(["simt_f32+rows_f32", "simt_bf16+rows_bf16"], [], turns="all of"))
def test_all_groups(builder: Builder, files: str, size: list[str]) -> None:
    assert_passes(builder.executable(files.split("+")), *size)


@SIZES
@BYTES
def test_all_groups_of_types_of_a_byte(builder: Builder, kind: str, size: list[str]) -> None:
    rows = [row for row in COMPILED_TILES if not row.tensor and kind in row.k_steps["cuda"]]
    tiles = [f"{kind} {row.name}/{row.threads}" for row in rows]
    assert_passes(builder.executable([f"simt_{OF_A_BYTE[kind]}"]), "--kinds", kind, *size, tiles=tiles)


@SIZES
@pytest.mark.parametrize("kind", slow_except(["f64", "bf16", "tf32x3"], [], turns="tensor cores"))
def test_all_groups_on_tensor_cores(builder: Builder, kind: str, size: list[str]) -> None:
    assert_passes(builder.executable([f"tensor_{kind}", f"tensor_light_{kind}"]), *size)


@SIZES
@BYTES
def test_all_groups_of_bytes_on_tensor_cores(builder: Builder, kind: str, size: list[str]) -> None:
    rows = [row for row in COMPILED_TILES if row.tensor and kind in row.k_steps["cuda"]]
    tiles = [f"{kind} {row.name}/{row.threads}" for row in rows]
    assert_passes(builder.executable([f"tensor_{OF_A_BYTE[kind]}"]), *size, tiles=tiles)


SIMT = ["simt_f32", "simt_f64", "simt_c128", "simt_bf16", "rows_f32", "rows_f64", "rows_bf16"]
TENSOR = [
    f"{prefix}_{one}" for prefix in ("tensor", "tensor_light") for one in ("f64", "bf16", "f16", "tf32", "tf32x3")
]
SEEDS = range(1, 6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("files", slow_except(["+".join(SIMT), "+".join(TENSOR)], [], turns="other orders of"))
def test_other_orders_and_problems(builder: Builder, files: str, seed: int) -> None:
    assert_passes(builder.executable(files.split("+")), "--small", "--seed", str(seed))


# The kernels as the ROCm backend builds them (waves of 64, CDNA's stages and K steps), by the kinds that they compute.
OF_CDNA = {
    "float32": ["simt_f32", "rows_f32"],
    "complex64": ["simt_c64"],
    "bfloat16": ["simt_bf16", "rows_bf16"],
    "float64": ["simt_f64", "rows_f64"],
    "complex128": ["simt_c128"],
    "float16": ["simt_f16", "rows_f16"],
    "float8_e4m3fn_e5m2": ["simt_e4m3_e5m2"],
    "int8": ["simt_s8"],
}
OF_MATRIX_UNITS = {
    "float32": ["mfma_f32"],
    "bfloat16": ["mfma_bf16"],
    "float64": ["mfma_f64"],
    "float16": ["mfma_f16"],
    "tf32": ["mfma_tf32"],
    "tf32x3": ["mfma_f32"],
}


def of_cdna(builder: Builder, *files: str) -> Path:
    return builder.executable(list(dict.fromkeys(("simt_f32", *files))), machine=CDNA)  # one check is simt_f32's


@SIZES
@pytest.mark.parametrize("kind", slow_except(OF_CDNA, [], turns="cdna"))
def test_all_groups_on_cdna(builder: Builder, kind: str, size: list[str]) -> None:
    executable = of_cdna(builder, *OF_CDNA[kind])
    assert_passes(executable, "--kinds", kind, *size, tiles=tiles_of(kind, tensor=False))


@SIZES
@pytest.mark.parametrize("kind", slow_except(OF_MATRIX_UNITS, [], turns="cdna"))
def test_all_groups_on_matrix_units(builder: Builder, kind: str, size: list[str]) -> None:
    executable = of_cdna(builder, *OF_MATRIX_UNITS[kind])
    assert_passes(executable, "--kinds", kind, *size, tiles=tiles_of(kind, tensor=True))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("files", slow_except(["cdna", "matrix units"], [], turns="other orders of"))
def test_other_orders_and_problems_on_cdna(builder: Builder, files: str, seed: int) -> None:
    by_kind = {"cdna": OF_CDNA, "matrix units": OF_MATRIX_UNITS}[files]
    executable = of_cdna(builder, *(name for names in by_kind.values() for name in names))
    assert_passes(executable, "--small", "--seed", str(seed))


# Files of kernels, or file:kernel for one kernel alone. Instrumented, a file takes up to a minute to compile. The
# default run has a kernel with few tiles of most families, for elements of one size each: other kernels of a family
# differ in the shapes of their tiles. Deep tiles, other sizes of elements, types of a byte and CDNA are slow tests.
@pytest.mark.parametrize(
    ("kernels", "machine"),
    [
        (["simt_f32:t128_light", "simt_f32:t256_dots", "rows_f32:t128_wide_rows"], []),
        (["tensor_f64:m128_heavy", "tensor_bf16:m128_rows"], []),
        *slow(
            (["simt_bf16:t128_light", "simt_bf16:t128_deep", "rows_bf16:t128_rows"], []),
            (["tensor_bf16:m128_heavy", "tensor_bf16:m256_dots", "tensor_bf16:m128_rows"], []),
            (["simt_e4m3_e5m2"], []),
            (["tensor_s8"], []),
            (["tensor_e4m3_e5m2:m128_light"], []),
            (["mfma_bf16"], CDNA),
            (["simt_bf16", "rows_bf16"], []),
            (["simt_f32", "rows_f32"], []),
            (["tensor_bf16", "tensor_light_bf16"], []),
            (["tensor_e4m3_e5m2"], []),
            (["simt_bf16", "rows_bf16"], CDNA),
        ),
    ],
    ids=kernels_id,
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_sanitizers(builder: Builder, tmp_path: Path, kernels: list[str], machine: list[str], seed: int) -> None:
    # copies of every kind, both types of results
    executable = some_kernels(builder, tmp_path, kernels, SANITIZE, machine=machine)
    assert_passes(executable, "--small", "--exact", "--seed", str(seed))


@pytest.mark.parametrize(
    ("kernels", "machine"),
    [
        (["simt_f32:t128_light", "rows_f32:t128_rows"], []),
        *slow(
            (["tensor_f64:m128_heavy", "tensor_f64:m256_dots"], []),
            (["simt_f32:t128_light", "simt_f32:t128_deep", "simt_f32:t256_dots", "rows_f32:t128_rows"], []),
            (["tensor_light_f64", "tensor_f64:m256_dots", "tensor_f64:m128_rows"], []),
            (["tensor_tf32x3:m128_heavy"], []),
            (["tensor_s8:m128_light"], []),
            (["mfma_bf16"], CDNA),
            (["simt_f32", "rows_f32"], []),
            (["simt_f64", "rows_f64"], []),
            (["tensor_f64", "tensor_light_f64"], []),
            (["tensor_tf32x3", "tensor_light_tf32x3"], []),
            (["tensor_s8"], []),
            (["simt_f32", "rows_f32"], CDNA),
        ),
    ],
    ids=kernels_id,
)
def test_races(builder: Builder, tmp_path: Path, kernels: list[str], machine: list[str]) -> None:
    executable = some_kernels(builder, tmp_path, kernels, machine=[*machine, *RACES])
    assert_passes(executable, "--small", "--exact", "--races")
