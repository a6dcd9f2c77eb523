"""The errors of an import on a machine without JAX, the module or its libraries."""

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import jax
import pytest

import jax_vbgemm
from jax_vbgemm._src.native import installation

PACKAGE = Path(jax_vbgemm.__file__).parent  # the installed one, of which there may be no source tree


def test_an_old_jax() -> None:
    program = "import jax; jax.__version_info__ = (0, 9, 1); import jax_vbgemm"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "ImportError: jax_vbgemm needs JAX 0.10.2 or newer, this is 0.9.1: pip install" in result.stderr


def test_the_oldest_jax_is_that_of_the_dependencies() -> None:
    oldest = ".".join(map(str, installation.OLDEST_JAX))
    assert f"jax>={oldest}" in (requires("jax-vbgemm") or [])
    installation.check_jax(installation.OLDEST_JAX)
    assert jax.__version_info__ >= installation.OLDEST_JAX


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module named 'jax_vbgemm._core'"), "imported from /src, where .* is missing"),
        (ImportError("libc.so.6: version `GLIBC_2.38' not found"), "GLIBC_2.38.* Build it here: pip"),
        (ImportError("libstdc++.so.6: version `GLIBCXX_3.4.32' not found"), "GLIBCXX_3.4.32.* Build it here: pip"),
        (ImportError("_core.so: file too short"), "file too short.*install the package again"),
    ],
)
def test_an_extension_module_that_does_not_load(error: ImportError, message: str) -> None:
    assert re.search(message, installation.why_not_loaded(error, "/src"))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ('raise ImportError("version `GLIBC_2.38\' not found")', "than this one has (version `GLIBC_2.38' not found)"),
        (None, "where its extension module is missing. If that is a source tree, install it with `pip install -e .`"),
    ],
    ids=["broken", "missing"],
)
def test_an_extension_module_that_does_not_load_is_explained(tmp_path: Path, module: str | None, message: str) -> None:
    package = tmp_path / "jax_vbgemm"
    (package / "_src" / "native").mkdir(parents=True)
    for file in ("__init__.py", "_src/__init__.py", "_src/native/__init__.py", "_src/native/installation.py"):
        (package / file).write_text((PACKAGE / file).read_text())
    if module:
        (package / "_core.py").write_text(module)
    # An editable installation finds its own package before any folder is looked into.
    program = """if True:
        import sys
        sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
        import jax_vbgemm
    """
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 1
    assert message in result.stderr
