"""Strict JAX for all tests: 64-bit types on, no silent promotion of dtypes or ranks, several CPU devices."""

import functools
import gc
import os
from importlib.metadata import version

# XLA's older emitters compile its part of a program in half the time, and one module of LLVM compiles faster than
# several. Later jaxlibs refuse the first flag.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        if version("jaxlib").startswith("0.10.")
        else "",
    )
)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# gcc 13 and later turn this check on. It uses frames in which gcc misaligns AVX-512 spills (https://gcc.gnu.org/PR110027).
os.environ.setdefault("ASAN_OPTIONS", "detect_stack_use_after_return=0")
os.environ["VBGEMM_CACHE"] = "off"  # plans by the cost model only, independent of plans that were tuned on this machine

import hypothesis
import jax
import pytest
from jax._src.interpreters import mlir
from no_skip import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401
from slow_parts import mark_today, pytest_configure, pytest_report_header  # noqa: F401
from source_tree import pytest_ignore_collect, pytest_terminal_summary  # noqa: F401

from jax_vbgemm._src.native.backends import platform_of
from jax_vbgemm._src.planner import entry

# JAX keeps what it has traced and compiled: collections find little, and took a fifth of the time of reading the tests.
gc.set_threshold(100_000, 20, 50)

# Most of the time in which a small program is lowered is that of making a context of MLIR. Later versions of JAX use a
# context several times by themselves.
if version("jax").startswith("0.10."):
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)

# tests validate plans of the package's planners too, as plans of users' planners always are
entry.TRUSTED = frozenset()

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")  # otherwise XLA's dots on a GPU would use TF32

hypothesis.settings.register_profile("default", deadline=None, max_examples=6, print_blob=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=100, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The workers of `-n auto`: the cores that this process may use, at most 16, as each worker takes memory on each
    GPU."""
    return min(len(os.sched_getaffinity(0)), 16)


@pytest.fixture(scope="session", autouse=True)
def without_passes_of_llvm():
    """XLA's programs run once or twice here, so LLVM's passes cost more than they save. XLA's own passes run as ever.

    Which platform it is only JAX's backends tell, which would hold memory of a GPU if xdist's controller started them.
    """
    disabled = jax.default_backend() == "cpu"
    jax.config.update("jax_disable_most_optimizations", disabled)
    if disabled:
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # for the processes that tests start


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest then collects several times


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_today(items)
    platform = platform_of(jax.devices()[0])  # JAX says "gpu" for both vendors
    for item in items:
        if item.get_closest_marker("gpu") and platform != "cuda":
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU, this is {platform}"))
        if item.get_closest_marker("rocm") and platform != "rocm":
            item.add_marker(pytest.mark.skip(reason=f"needs an AMD GPU, this is {platform}"))
        if (wanted := item.get_closest_marker("multidevice")) and jax.device_count() < wanted.args[0]:
            reason = f"needs {wanted.args[0]} devices, there are {jax.device_count()}"
            item.add_marker(pytest.mark.skip(reason=reason))
