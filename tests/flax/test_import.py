"""Flax is an optional dependency."""

import subprocess
import sys


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_the_package_does_not_import_flax():
    result = python("import sys, jax_vbgemm; sys.exit(any(name.split('.')[0] == 'flax' for name in sys.modules))")
    assert result.returncode == 0, result.stderr


def test_without_flax_the_error_names_the_extra():
    result = python("import sys; sys.modules['flax'] = None; import jax_vbgemm.flax")
    assert "pip install jax-vbgemm[flax]" in result.stderr
