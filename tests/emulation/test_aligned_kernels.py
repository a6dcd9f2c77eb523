"""Mistakes planted in the kernels for aligned rows are caught; test_emulation.py has their check."""

import shutil
from pathlib import Path

import pytest
from emulated_check import COMPILER, CSRC, Builder, change, first_fault
from slow_cases import slow_except

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there")

MISTAKES = {
    "a place that is not checked": (
        "aligned_tile.h",
        "lies_inside({part.offset, part.row_stride, 1, 0, 0}, rows, cols, buffer.elements)",
        "(rows >= 0)",
    ),
    "another tile's record": ("aligned_tile.h", "plan.tiles + index)", "plan.tiles + index / 2)"),
    "sums overwritten while others read operands": (
        "tensor_store.h",
        "block_barrier();  // all threads have read",
        "// all threads have read",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_can_be_made(tmp_path: Path, mistake: str) -> None:
    name, right, wrong = MISTAKES[mistake]
    change(tmp_path, CSRC / "gpu/tensor" / name, right, wrong)


@pytest.mark.parametrize("mistake", slow_except(MISTAKES, []))
def test_mistakes_are_caught(builder: Builder, tmp_path: Path, mistake: str) -> None:
    name, right, wrong = MISTAKES[mistake]
    change(tmp_path, CSRC / "gpu/tensor" / name, right, wrong)
    kernels = ["tensor_aligned_bf16", "tensor_light_bf16"]  # the check is one of tiles that have a general kernel
    executable = builder.executable(kernels, ["-Og"], changed=tmp_path)
    assert any(first_fault(executable, "--kinds", "bfloat16", "--small", "--seed", str(seed)) for seed in range(8))
