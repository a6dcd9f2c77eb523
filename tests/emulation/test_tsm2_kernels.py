"""The kernels of benchmarks/tsm2_kernels.h, with which the experiments of Rivera et al. are repeated, without a GPU."""

import shutil
import subprocess
from pathlib import Path

import emulated_check
import pytest
from emulated_check import DRIVER, INCLUDES, ROOT, SANITIZE, Builder, source_file

BENCHMARKS = ROOT / "benchmarks"


def run(builder: Builder, folder: Path) -> str:
    """What the check of the kernels in `folder` prints."""
    # As the driver: with more optimization the kernels take twice as long to compile, and run no faster.
    options = [*emulated_check.FLAGS, *SANITIZE, *DRIVER, "-x", "c++"]
    files = folder / "tsm2_emulated.cc", source_file("emulation/block.cc"), source_file("emulation/fiber.cc")
    objects = [builder.compiled.object(options, [*INCLUDES, str(file)]) for file in files]
    program = builder.compiled.program(SANITIZE, objects)
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=emulated_check.TIMEOUT)
    return result.stdout


def test_every_kernel(builder: Builder):
    assert run(builder, BENCHMARKS) == "PASS\n"


@pytest.mark.parametrize(
    ("fault", "right", "wrong"),
    [
        (
            "FAIL: ISM2-2",
            "const int k = !last ? l + kAhead : next_row ? j : end;",
            "const int k = !last ? l + kAhead : end;",
        ),
        (
            "FAIL emulation: a copy is still in flight",
            "cp_async_wait_group<kStages - 2>();",
            "cp_async_wait_group<kStages - 1>();",
        ),
        # V3's barrier after the products of a part of B, without which the next part arrives too early.
        (
            "FAIL: V3",
            "        block_barrier();\n        store_b(x, next_b, part);",
            "        store_b(x, next_b, part);",
        ),
    ],
)
def test_mistakes_are_found(builder: Builder, tmp_path, fault, right, wrong):
    text = (BENCHMARKS / "tsm2_kernels.h").read_text()
    assert text.count(right) == 1
    (tmp_path / "tsm2_kernels.h").write_text(text.replace(right, wrong))
    shutil.copy(BENCHMARKS / "tsm2_emulated.cc", tmp_path)
    assert fault in run(builder, tmp_path)
