"""The CUDA module of a plugin: it is found, and its CUDA version and its own version are checked."""

import importlib.util
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from jax_vbgemm._src.native import plugins
from jax_vbgemm._src.native.version import __version__
from jax_vbgemm._src.tools import cli

ROOT = Path(__file__).parents[2]
OWN = "jax_vbgemm._cuda"  # may have been built here


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that makes these the only packages there are, plugins with the version that it is given."""

    def install(*names, version=__version__):
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(f"__version__ = {version!r}")
            (tmp_path / name / "_cuda.py").touch()
            monkeypatch.delitem(sys.modules, name, raising=False)
            monkeypatch.delitem(sys.modules, f"{name}._cuda", raising=False)
        importlib.invalidate_caches()
        monkeypatch.setattr(plugins, "find_spec", lambda name: name if name in names else None)

    return install


def test_there_is_none(installed):
    installed()
    with pytest.raises(ModuleNotFoundError, match=r"neither jax_vbgemm\._cuda nor jax_vbgemm_cuda13 nor"):
        plugins.cuda_module()


@pytest.mark.parametrize(
    ("packages", "taken"),
    [
        (["jax_vbgemm_cuda12"], "jax_vbgemm_cuda12"),
        (["jax_vbgemm_cuda12", "jax_vbgemm_cuda13"], "jax_vbgemm_cuda13"),
        (["jax_vbgemm_cuda12", "jax_vbgemm_cuda13", "jax_cuda12_plugin"], "jax_vbgemm_cuda12"),
        (["jax_vbgemm_cuda12", "jax_cuda12_plugin", "jax_cuda13_plugin"], "jax_vbgemm_cuda12"),
    ],
)
def test_the_plugin_for_jax_s_cuda_is_taken(installed, packages, taken):
    installed(*packages)
    assert plugins.cuda_module().__name__ == f"{taken}._cuda"


def test_a_plugin_for_another_cuda_than_jax_s(installed):
    installed("jax_vbgemm_cuda13", "jax_cuda12_plugin")
    with pytest.raises(
        ImportError, match=r"cuda13 is installed, but JAX's plugin is for CUDA 12: pip install 'jax-vbgemm\[cuda12\]"
    ):
        plugins.cuda_module()


def test_a_plugin_of_another_version_stops_the_import(tmp_path):
    package = tmp_path / "jax_vbgemm_cuda13"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '9.9'")
    program = (
        "import sys, importlib.util as u; find = u.find_spec; sys.path.insert(0, sys.argv[1])\n"
        f"u.find_spec = lambda name: None if name == {OWN!r} or name.startswith('jax_cuda') else find(name)\n"
        "import jax_vbgemm"
    )
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"jax-vbgemm is {__version__}, but its plugin jax-vbgemm-cuda13 is 9.9: pip install" in result.stderr
    assert f"'jax-vbgemm[cuda13]=={__version__}'" in result.stderr


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ((13000, 0), "built, but this machine has no NVIDIA driver"),
        ((13000, 12080), "built for CUDA 13, but the driver is for CUDA 12: install a newer one"),
        ((12090, 13000), "built, but JAX sees no such device"),
    ],
)
def test_why_no_device_is_seen(versions, text):
    backend = types.SimpleNamespace(name="cuda", module=types.SimpleNamespace(cuda_versions=lambda: versions))
    assert cli.why_no_device(backend) == text


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    headings = re.findall(r"^## \[(.*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == __version__
    for major in plugins.CUDA_MAJORS:
        assert f"jax-vbgemm-cuda{major}=={__version__}" in project["optional-dependencies"][f"cuda{major}"]
