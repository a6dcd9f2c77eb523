"""Flax and other packages are optional dependencies."""

import subprocess
import sys

import pytest


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_the_package_does_not_import_flax():
    result = python("import sys, jax_vbgemm; sys.exit(any(name.split('.')[0] == 'flax' for name in sys.modules))")
    assert result.returncode == 0, result.stderr


def test_without_flax_the_error_names_the_extra():
    result = python("import sys; sys.modules['flax'] = None; import jax_vbgemm.flax")
    assert "pip install jax-vbgemm[flax]" in result.stderr


@pytest.mark.parametrize(
    ("module", "missing", "remedy"),
    [
        ("optax", "optax", "jax_vbgemm.optax needs the extra 'optax': pip install jax-vbgemm[optax]"),
        ("irreps.flax", "e3nn_jax", "jax_vbgemm.irreps.flax needs the extra 'irreps': pip install jax-vbgemm[irreps]"),
        ("irreps.haiku", "haiku", "needs the extra 'irreps' and dm-haiku: pip install jax-vbgemm[irreps] dm-haiku"),
        ("irreps.nnx", "cuequivariance_jax", "irreps.nnx needs the extra 'irreps': pip install jax-vbgemm[irreps]"),
    ],
)  # fmt: skip
def test_other_extras_are_named_too(module, missing, remedy):
    result = python(f"import sys; sys.modules['{missing}'] = None; import jax_vbgemm.{module}")
    assert result.returncode == 1
    assert remedy in result.stderr
