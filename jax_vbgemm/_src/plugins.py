"""Where the CUDA module comes from: this package, if it was built with it, else jax-vbgemm-cuda13 or -cuda12."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType

from jax_vbgemm._src.version import __version__

CUDA_MAJORS = (13, 12)


def cuda_module() -> ModuleType:
    """The module _cuda, of the plugin for the version of CUDA that JAX's own plugin is for.

    Raises:
      ImportError: there is none, or it does not load.
      RuntimeError: the plugin is of another version; the message names both and the command that mends it. It is no
        ImportError, so that it does not pass for an absent backend.
    """
    if find_spec("jax_vbgemm._cuda"):
        return importlib.import_module("jax_vbgemm._cuda")
    ours = [major for major in CUDA_MAJORS if find_spec(f"jax_vbgemm_cuda{major}")]
    if not ours:
        raise ModuleNotFoundError("there is neither jax_vbgemm._cuda nor jax_vbgemm_cuda13 nor jax_vbgemm_cuda12")
    of_jax = [major for major in CUDA_MAJORS if find_spec(f"jax_cuda{major}_plugin")] or ours
    common = [major for major in ours if major in of_jax]
    if not common:
        raise ImportError(
            f"jax-vbgemm-cuda{ours[0]} is installed, but JAX's plugin is for CUDA {of_jax[0]}: "
            f"pip install 'jax-vbgemm[cuda{of_jax[0]}]=={__version__}'"
        )
    package = f"jax_vbgemm_cuda{common[0]}"
    check_version(common[0], importlib.import_module(package).__version__)
    return importlib.import_module(f"{package}._cuda")


def check_version(major: int, version: str) -> None:
    """Raises RuntimeError unless the plugin has this package's version: they have to agree on the tiles of a plan."""
    if version != __version__:
        raise RuntimeError(
            f"jax-vbgemm is {__version__}, but its plugin jax-vbgemm-cuda{major} is {version}: "
            f"pip install 'jax-vbgemm[cuda{major}]=={__version__}'"
        )
