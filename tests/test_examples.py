"""The examples run from end to end, in a few steps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jax_vbgemm

ROOT = Path(jax_vbgemm.__file__).parents[1]
EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments, cwd):
    path = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": path, "XLA_FLAGS": "", "COLUMNS": "200"}
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_muon_digits(tmp_path):
    for package in ("optax", "sklearn", "matplotlib"):
        pytest.importorskip(package)
    out = run("muon_digits.py", "--steps", 3, "--width", 16, "--layers", 1, "--batch", 8, cwd=tmp_path)
    assert "test accuracy" in out
    assert float(out.split("largest difference of the curves:")[1].split()[0]) < 1e-3
    assert (tmp_path / "muon_digits.png").stat().st_size > 1000


def test_kfac_preconditioning(tmp_path):
    assert "two operations" in run(
        "kfac_preconditioning.py", "--shrink", 16, "--rounds", 2, "--batch", 32, cwd=tmp_path
    )
