"""The same program in one process with four devices and under jax.distributed in two with two each."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jax_vbgemm as vb

PROGRAM = Path(__file__).with_name("program.py")


@pytest.mark.slow
def test_two_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = os.environ | {"PYTHONPATH": str(Path(vb.__file__).parents[1]), "JAX_PLATFORMS": "cpu"}

    def start(name, *args):
        command = [sys.executable, PROGRAM, tmp_path / name, *args]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    running = [start("one", "4"), *(start("two", "2", address, "2", str(index)) for index in range(2))]
    try:
        for process in running:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors[-4000:]
    finally:
        for process in running:
            process.kill()
    expected = np.load(tmp_path / "one0.npz")
    for index in range(2):
        found = np.load(tmp_path / f"two{index}.npz")
        assert found.files == expected.files
        for name in found.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
