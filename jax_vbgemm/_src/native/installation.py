"""Import-time checks of JAX's version and of the compiled module; errors name what is missing and how to get it."""

from __future__ import annotations

import importlib
from pathlib import Path

import jax

OLDEST_JAX = (0, 10, 2)


def check_jax(version: tuple[int, ...] = jax.__version_info__) -> None:
    """Raises ImportError if JAX is older than the version that the handlers and the tracing rules need."""
    if version < OLDEST_JAX:
        needed, here = (".".join(map(str, numbers)) for numbers in (OLDEST_JAX, version))
        raise ImportError(
            f"jax_vbgemm needs JAX {needed} or newer, this is {here}: pip install --upgrade 'jax>={needed}'"
        )


def why_not_loaded(error: ImportError, folder: str) -> str:
    """The message for an extension module in `folder` that could not be loaded, with a remedy."""
    if isinstance(error, ModuleNotFoundError):
        return (
            f"jax_vbgemm was imported from {folder}, where its extension module is missing. If that is a source tree, "
            "install it with `pip install -e .` or start Python elsewhere; otherwise install the package again."
        )
    if "GLIBC" in str(error):  # the version symbols GLIBCXX_ of libstdc++ and GLIBC_ of glibc
        return (
            "jax_vbgemm's extension module was built on a system with newer C and C++ libraries than this one has "
            f"({error}). Build it here: pip install --force-reinstall --no-deps --no-binary jax-vbgemm jax-vbgemm"
        )
    return f"jax_vbgemm's extension module does not load ({error}): install the package again."


check_jax()
try:
    # `from jax_vbgemm import _core` would raise a plain ImportError if the module is missing, too.
    importlib.import_module("jax_vbgemm._core")
except ImportError as error:
    raise ImportError(why_not_loaded(error, str(Path(__file__).parents[1]))) from error
