"""The extension modules share no symbol with other libraries of the process, so any order of imports works."""

import importlib.util
import itertools
import shutil
import subprocess
import sys

import pytest

MODULES = [name for name in ("_core", "_cuda", "_rocm") if importlib.util.find_spec(f"jax_vbgemm.{name}")]


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
@pytest.mark.skipif(sys.platform != "linux", reason="reads the symbols of an ELF file")
@pytest.mark.parametrize("name", MODULES)
def test_a_module_exports_its_initializer_alone(name: str) -> None:
    spec = importlib.util.find_spec(f"jax_vbgemm.{name}")
    assert spec is not None
    assert spec.origin is not None
    command = ["nm", "-D", "--defined-only", spec.origin]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [f"PyInit_{name}"]


# Each with something of its own C++ code run: libraries that share a C++ runtime's state break when they use it.
OTHERS = {
    "numpy": "numpy.array2string(numpy.arange(3.5))",
    "ml_dtypes": "str(ml_dtypes.finfo(ml_dtypes.bfloat16)), repr(ml_dtypes.bfloat16(1.5))",
    "jax": "str(jax.numpy.ones(3) * 1.5)",
    "torch": "str(torch.ones(3) * 1.5)",
}
PRODUCT = "jax_vbgemm.batched_matmul([jax.numpy.ones((5, 7))], [jax.numpy.ones((7, 3))])[0].tolist()"
INSTALLED = [name for name in OTHERS if importlib.util.find_spec(name)]
ORDERS = [
    ["jax_vbgemm", *INSTALLED],
    [*INSTALLED, "jax_vbgemm"],
    *itertools.chain.from_iterable((["jax_vbgemm", name], [name, "jax_vbgemm"]) for name in INSTALLED),
]


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_any_order_of_imports(order: list[str]) -> None:
    program = [f"import {name}" for name in order]
    program += [OTHERS[name] for name in order if name in OTHERS]
    program += ["import jax", f"assert {PRODUCT} == [[7.0] * 3] * 5"]
    result = subprocess.run([sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
