"""The kernels of this installation, and the device for which a program is planned."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

import jax

from jax_vbgemm import _core
from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES
from jax_vbgemm._src.native.plugins import cuda_module
from jax_vbgemm._src.planner import DeviceSpec, Reported, device_spec, match_device

# The names of the custom calls. If the contract of a handler changes, its name changes too.
TARGET_NAME = "vbgemm_v2"
ADD_TARGET_NAME = "vbgemm_add_v2"  # on GPUs only; on the CPU XLA's loops are as fast
SQUARE_SUMS_TARGET_NAME = "vbgemm_square_sums_v1"  # on GPUs only
AVERAGES_TARGET_NAME = "vbgemm_averages_v1"  # on GPUs only
QUANTIZE_TARGET_NAME = "vbgemm_quantize_v2"  # on GPUs only
ROWS_BY_INDEX_TARGET_NAME = "vbgemm_rows_by_index_v1"  # on GPUs only
RAGGED_TARGET_NAME = "vbgemm_ragged_v8"  # on RAGGED_PLATFORMS
GPU_PLATFORMS: tuple[str, ...] = ("cuda", "rocm")
RAGGED_PLATFORMS = ("cpu", "cuda", "rocm")

DISABLE_JAX_EXPORT_CHECKS = [
    jax.export.DisabledSafetyCheck.custom_call(name)
    for name in (
        TARGET_NAME, ADD_TARGET_NAME, SQUARE_SUMS_TARGET_NAME, AVERAGES_TARGET_NAME, QUANTIZE_TARGET_NAME,
        ROWS_BY_INDEX_TARGET_NAME, RAGGED_TARGET_NAME,
    )
]  # fmt: skip
"""Pass this as `disabled_checks` to jax.export.export, which otherwise refuses custom calls that it doesn't know."""


@dataclasses.dataclass(frozen=True)
class Backend:
    """The kernels for one of JAX's platforms.

    name: JAX's name of the platform ("cpu", "cuda", "rocm"). module: the extension module, or None if it is absent;
    `absent` then says why.
    """

    name: str
    ffi_platform: str
    default_device: str
    module: ModuleType | None
    absent: str | None

    @functools.cached_property
    def kinds(self) -> tuple[str, ...]:
        """The arithmetics that have a kernel on this platform."""
        on_cpu = self.name == "cpu"
        tiles = [tile for tile in COMPILED_TILES if on_cpu or tile.is_gpu]
        return tuple(dict.fromkeys(kind for tile in tiles for kind in tile.kinds))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The operand dtypes that have a kernel on this platform."""
        return tuple(dict.fromkeys(ARITHMETICS[kind].lhs for kind in self.kinds))

    def live_devices(self) -> list[jax.Device]:
        """The devices of this platform that JAX sees; none where the platform cannot be initialised."""
        try:
            return jax.devices(self.name)
        except RuntimeError:
            return []


def _load(name: str, ffi_platform: str, default_device: str, load: Callable[[], ModuleType], hint: str) -> Backend:
    module, absent = None, None
    try:
        module = load()
        # Registered under exactly this platform name: a target registered as "cuda" before JAX's plugin is loaded never
        # reaches the plugin.
        jax.ffi.register_ffi_target(TARGET_NAME, module.handler(), platform=ffi_platform)
        if name in RAGGED_PLATFORMS:
            jax.ffi.register_ffi_target(RAGGED_TARGET_NAME, module.ragged_handler(), platform=ffi_platform)
        if name in GPU_PLATFORMS:
            jax.ffi.register_ffi_target(ADD_TARGET_NAME, module.add_handler(), platform=ffi_platform)
            handler = module.square_sums_handler()
            jax.ffi.register_ffi_target(SQUARE_SUMS_TARGET_NAME, handler, platform=ffi_platform)
            jax.ffi.register_ffi_target(AVERAGES_TARGET_NAME, module.averages_handler(), platform=ffi_platform)
            jax.ffi.register_ffi_target(QUANTIZE_TARGET_NAME, module.quantize_handler(), platform=ffi_platform)
            handler = module.rows_by_index_handler()
            jax.ffi.register_ffi_target(ROWS_BY_INDEX_TARGET_NAME, handler, platform=ffi_platform)
    except ImportError as error:
        absent = f"{hint} ({error})"
    return Backend(name, ffi_platform, default_device, module, absent)


BACKENDS = {
    backend.name: backend
    for backend in (
        _load("cpu", "cpu", "cpu", lambda: _core, "the extension module is broken: install the package again"),
        _load(
            "cuda", "CUDA", "h100", cuda_module,
            "not installed: pip install 'jax-vbgemm[cuda13]' or [cuda12]; from source: nvcc and VBGEMM_CUDA=ON",
        ),
        _load(
            "rocm", "ROCM", "mi210", lambda: importlib.import_module("jax_vbgemm._rocm"),
            "not built, or its ROCm runtime is not found: install ROCm and install with VBGEMM_HIP=ON",
        ),
    )
}  # fmt: skip


def available_backends() -> tuple[str, ...]:
    """The platforms whose kernels can run here: built, and with a device that JAX sees.

    Returns:
      A tuple of JAX's names of platforms: "cpu", "cuda", "rocm".

    Examples:
      >>> import jax_vbgemm as vb
      >>> "cpu" in vb.available_backends()
      True
    """
    return tuple(name for name, backend in BACKENDS.items() if backend.module and backend.live_devices())


# Part of jit's cache key, so that a program lowered for one target is not reused for another.
_target = jax.make_user_context(None)


def target(device: str | DeviceSpec) -> AbstractContextManager[None]:
    """A context in which programs for this device's platform are planned for this device: `with vb.target("a100"):`.

    For programs that are exported, or compiled ahead of time, for a device that this machine does not have.

    Args:
      device: the name of a device, such as "h100", or a `DeviceSpec`.

    Returns:
      A context manager.

    Raises:
      ValueError: the name is unknown; the message lists the known names.
      TypeError: `device` is neither a name nor a DeviceSpec.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> operands = [jnp.ones((5, 7))], [jnp.ones((7, 3))]
      >>> with vb.target("a100"):
      ...     exported = jax.export.export(
      ...         jax.jit(vb.batched_matmul), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS
      ...     )(*operands)
      >>> exported.platforms
      ('cuda',)
    """
    context: AbstractContextManager[None] = _target(device_spec(device))
    return context


def named_target() -> DeviceSpec | None:
    """The device of the enclosing `target`, if there is one."""
    named: DeviceSpec | None = _target.value
    return named


def planning_device(platform: str) -> DeviceSpec:
    """The device for which a program is planned: the named target, else the live device, else the platform's
    default."""
    named = named_target()
    if named is not None and named.platform == platform:
        return named
    backend = BACKENDS[platform]
    if platform == "cpu":
        return match_device(Reported("cpu", "cpu", len(os.sched_getaffinity(0))))
    for device in backend.live_devices():
        return match_device(reported_by(device))
    return device_spec(backend.default_device)


def reported_by(device: jax.Device) -> Reported:
    """The live device's properties as reported by the driver, as far as JAX exposes them."""
    units, capability, shared_bytes = (
        getattr(device, name, None) for name in ("core_count", "compute_capability", "shared_memory_per_block_optin")
    )
    return Reported(
        device.device_kind, platform_of(device), units,
        None if capability is None else str(capability), shared_bytes or None,
    )  # fmt: skip


def platform_of(device: jax.Device) -> str:
    """The platform for which programs of a live device are lowered: "cuda" or "rocm" where JAX says "gpu"."""
    if device.platform == "gpu":
        return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"
    return str(device.platform)


def default_device() -> DeviceSpec:
    """The live device of JAX's default backend, for `plan` without a device."""
    platform = platform_of(jax.devices()[0])
    return planning_device(platform if platform in BACKENDS else "cpu")


def traced_target() -> DeviceSpec:
    """The device for which a program is being traced: the named target, or else the default device.

    A program that is traced for a named target may run on another machine, where that backend is installed.
    """
    return named_target() or default_device()
