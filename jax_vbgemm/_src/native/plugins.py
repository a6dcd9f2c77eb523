"""Finds the CUDA module: in this package if it was built with CUDA, else in jax-vbgemm-cuda13 or jax-vbgemm-cuda12."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType

from jax_vbgemm._src.native.version import __version__

CUDA_MAJORS = (13, 12)


def cuda_module() -> ModuleType:
    """The module _cuda, from the plugin for the same version of CUDA as JAX's own plugin.

    Raises:
      ImportError: there is none, or it does not load.
      RuntimeError: the plugin has another version; the message names both versions and the command that installs the
        right one. It is not an ImportError, which would mean an absent backend.
    """
    if find_spec("jax_vbgemm._cuda"):
        return importlib.import_module("jax_vbgemm._cuda")
    ours = [major for major in CUDA_MAJORS if find_spec(f"jax_vbgemm_cuda{major}")]
    if not ours:
        raise ModuleNotFoundError("there is neither jax_vbgemm._cuda nor jax_vbgemm_cuda13 nor jax_vbgemm_cuda12")
    jax_majors = [major for major in CUDA_MAJORS if find_spec(f"jax_cuda{major}_plugin")] or ours
    common = [major for major in ours if major in jax_majors]
    if not common:
        raise ImportError(
            f"jax-vbgemm-cuda{ours[0]} is installed, but JAX's plugin is for CUDA {jax_majors[0]}: "
            f"pip install 'jax-vbgemm[cuda{jax_majors[0]}]=={__version__}'"
        )
    package = f"jax_vbgemm_cuda{common[0]}"
    check_version(common[0], importlib.import_module(package).__version__)
    return importlib.import_module(f"{package}._cuda")


def check_version(major: int, version: str) -> None:
    """Raises RuntimeError unless the plugin has this package's version, as both must have the same table of tiles."""
    if version != __version__:
        raise RuntimeError(
            f"jax-vbgemm is {__version__}, but its plugin jax-vbgemm-cuda{major} is {version}: "
            f"pip install 'jax-vbgemm[cuda{major}]=={__version__}'"
        )
