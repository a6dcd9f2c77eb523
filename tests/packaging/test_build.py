"""What CMake decides to build, and the packages that `./run` installs before."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.slow
@pytest.mark.skipif(CMAKE is None, reason="needs cmake")
@pytest.mark.parametrize(
    ("capabilities", "message"),
    [("", "nvidia-smi finds no GPU here; VBGEMM_CUDA=ON builds it all the same"), ("7.5", "GPUs have 7.5")],
)
def test_cuda_is_left_out_where_no_gpu_can_run_it(tmp_path: Path, capabilities: str, message: str) -> None:
    programs = {"nvidia-smi": f'echo "{capabilities}"', "nvcc": "exit 0"}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    # As a project of its own: how a compiler is asked for would be CMake's business, and takes half a minute.
    (tmp_path / "CMakeLists.txt").write_text(
        f"""cmake_minimum_required(VERSION 3.24)
        project(left_out NONE)
        set(VBGEMM_CUDA AUTO)
        function(check_language language)
          set(CMAKE_CUDA_COMPILER nvcc PARENT_SCOPE)
        endfunction()
        function(include)
        endfunction()
        function(enable_language language)
          message(FATAL_ERROR "built")
        endfunction()
        _include("{ROOT}/cmake/cuda.cmake")
        """
    )
    environment = {name: value for name, value in os.environ.items() if name != "CUDAARCHS"}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    assert CMAKE is not None
    command = [CMAKE, "-S", str(tmp_path), "-B", str(tmp_path / "build")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    assert message in " ".join(result.stdout.split())


def test_what_is_installed_before_a_build() -> None:
    command = [sys.executable, str(ROOT / "tools" / "build_requirements.py")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    names = [line.split(">")[0].split("=")[0] for line in lines]
    assert {"scikit-build-core", "nanobind", "cmake", "ninja", "jax"} <= set(names)
    # the oldest jaxlib, which the installed JAX would replace, so that all would be compiled again
    assert "jaxlib" not in names
