"""A custom call on many arrays on the CPU: its handler's checks and its kernels, emulated, under XLA."""

import ctypes
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import jax
import pytest
from emulated_check import COMPILER, Builder
from jax.interpreters import mlir

from jax_vbgemm._src.elementwise import array_kernels
from jax_vbgemm._src.native import backends

MARKS = [
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="the call is emulated on the CPU"),
]


@contextmanager
def emulated(
    builder: Builder, primitive: Any, module: ModuleType, target: str, handler: str, kernels: str, symbol: str
) -> Iterator[None]:
    """Registers the call for the CPU and lowers programs for the CPU to it; `handler` and `kernels` are source
    files, `symbol` is the handler's name in the library."""
    library = builder.array_library(handler, kernels, jax.ffi.include_dir())
    function = getattr(ctypes.CDLL(str(library)), symbol)
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends.BACKENDS, "emulated", backends.BACKENDS["cpu"])
        forms = module._xla_form, module._kernel_form
        mlir.register_lowering(primitive, partial(array_kernels.lower, "emulated", *forms), platform="cpu")
        jax.clear_caches()
        yield
        mlir.register_lowering(primitive, mlir.lower_fun(forms[0], multiple_results=True), platform="cpu")
    jax.clear_caches()
