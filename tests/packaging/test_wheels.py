"""The wheel of a plugin, as tools/wheels.py packs it: pip installs it, and the package has the right metadata."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jax_vbgemm import _core
from jax_vbgemm._src.native.version import __version__

SCRIPT = Path(__file__).parents[2] / "tools" / "wheels.py"


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("wheels", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "WORK", tmp_path)
    monkeypatch.delenv("CUDACXX", raising=False)
    return module


def nvcc_of(release, folder):
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'")
    nvcc.chmod(0o755)
    return nvcc


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strip") is None, reason="needs strip")
def test_pip_installs_a_plugin(wheels, tmp_path):
    module = tmp_path / "built" / "_cuda.abi3.so"
    module.parent.mkdir()
    shutil.copy(_core.__file__, module)
    wheel = wheels.pack("cuda13", module, "py3-none-any", wheels.ARCHITECTURES, nvcc_of("13.0", tmp_path))
    target = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target, wheel]
    subprocess.run([*map(str, command)], check=True)
    assert (target / "jax_vbgemm_cuda13" / module.name).stat().st_size > 0
    program = "import jax_vbgemm_cuda13 as p; print(p.__version__, p.__doc__)"
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=target, check=True, capture_output=True, text=True
    ).stdout
    assert said.startswith(f"{__version__} ")
    assert "compiled by CUDA 13.0 for sm_80, sm_89, sm_90a, PTX 80" in said


def test_another_cuda_than_asked_for_is_refused(wheels, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDACXX", str(nvcc_of("13.0", tmp_path)))
    with pytest.raises(SystemExit, match=r"cuda12: .*nvcc is not of CUDA 12"):
        wheels.nvcc_of("cuda12")
    monkeypatch.delenv("CUDACXX")
    with pytest.raises(SystemExit, match="PyPI has no nvcc of CUDA 12: install its toolkit and name nvcc in CUDACXX"):
        wheels.nvcc_of("cuda12")


@pytest.mark.parametrize(
    ("what", "tried"),
    [
        (["sdist", "core", "cuda13"], [["core-a", "cuda13-a"], ["core-b", "cuda13-b"]]),
        (
            ["core", "cuda12", "cuda13"],
            [[f"core-{p}", f"{plugin}-{p}"] for p in "ab" for plugin in ("cuda13", "cuda12")],
        ),
        (["core"], [["core-a"], ["core-b"]]),
    ],
)
def test_one_command_builds_and_tries_the_wheels_of_both_pythons(wheels, tmp_path, monkeypatch, what, tried):
    built, installed = [], []
    monkeypatch.setattr(wheels, "sdist", lambda output: built.append("sdist"))
    monkeypatch.setattr(wheels, "core", lambda python, output: f"core-{python}")
    monkeypatch.setattr(wheels, "plugin", lambda name, python, architectures, output: f"{name}-{python}")
    monkeypatch.setattr(wheels, "call", lambda python, script, option, of, *names: installed.append([of, *names]))
    monkeypatch.setattr(sys, "argv", ["wheels.py", *what, "--try", "--python", "a", "--python", "b"])
    wheels.main()
    assert built == [each for each in what if each == "sdist"]
    assert installed == [[names[0][-1], *names] for names in tried]


def test_a_plugin_is_not_tried_without_the_package(wheels, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["wheels.py", "cuda13", "--try"])
    with pytest.raises(SystemExit):
        wheels.main()
    assert "--try needs core" in capsys.readouterr().err
