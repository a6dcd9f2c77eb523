"""Flax and other packages are optional dependencies."""

import subprocess
import sys

import pytest

# Each row: a module of the package, a package that is missing, and what the error says.
CASES = [
    ("flax", "flax", "pip install jax-vbgemm[flax]"),
    ("optax", "optax", "jax_vbgemm.optax needs the extra 'optax': pip install jax-vbgemm[optax]"),
    ("irreps.flax", "e3nn_jax", "jax_vbgemm.irreps.flax needs the extra 'irreps': pip install jax-vbgemm[irreps]"),
    ("irreps.haiku", "haiku", "needs the extra 'irreps' and dm-haiku: pip install jax-vbgemm[irreps] dm-haiku"),
    ("irreps.equinox", "equinox", "needs the extra 'irreps' and equinox: pip install jax-vbgemm[irreps] equinox"),
    ("irreps.nnx", "cuequivariance_jax", "irreps.nnx needs the extra 'irreps': pip install jax-vbgemm[irreps]"),
]
SCRIPT = """
import importlib, sys
import jax_vbgemm
from jax._src import xla_bridge

assert not xla_bridge.backends_are_initialized()
extras = {"flax", "optax", "haiku", "equinox", "e3nn_jax", "cuequivariance_jax"}
print({name.split(".")[0] for name in sys.modules} & extras)
for module, missing in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    sys.modules[missing] = None
    try:
        importlib.import_module(f"jax_vbgemm.{module}")
    except ImportError as error:
        print(str(error).replace(chr(10), " "))
    else:
        print("no error")
    del sys.modules[missing]
"""


@pytest.mark.slow
def test_the_package_needs_no_extra_and_errors_name_them():
    """In one process: importing the package imports none of them, and starts none of JAX's backends."""
    arguments = [word for module, missing, _ in CASES for word in (module, missing)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    imported, *errors = done.stdout.splitlines()
    assert imported == "set()"
    for error, (_, _, remedy) in zip(errors, CASES, strict=True):
        assert remedy in error
