"""The built ROCm module as a file: its dependencies, exported symbols and kernels. No GPU or ROCm is needed."""

import re
import shutil
import struct
import subprocess
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from jaxlib import xla_client

import jax_vbgemm as vb
from jax_vbgemm._src.native.backends import BACKENDS, TARGET_NAME
from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES

FILES = [Path(folder) / f"_rocm{suffix}" for folder in vb.__path__ for suffix in EXTENSION_SUFFIXES]
LIBRARY = next((file for file in FILES if file.exists()), None)
BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"

pytestmark = pytest.mark.skipif(
    LIBRARY is None, reason="the ROCm backend is not built: VBGEMM_HIP=ON (docs/internals/building.md)"
)


def code_objects():
    """(architecture, code) of everything for a GPU in the library; one a source file and architecture."""
    data = LIBRARY.read_bytes()
    for match in re.finditer(re.escape(BUNDLE), data):
        at = match.end()
        (count,) = struct.unpack_from("<Q", data, at)
        at += 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", data, at)
            name = data[at + 24 : at + 24 + length].decode()
            at += 24 + length
            if size and "amdgcn" in name:
                yield name.split("--")[-1], data[match.start() + offset : match.start() + offset + size]


@pytest.fixture(scope="module")
def kernels():
    """The kernels of each architecture."""
    found: dict[str, set[str]] = {}
    for arch, code in code_objects():
        names = re.findall(rb"vbgemm_(\w+)\.kd", code)
        found.setdefault(arch, set()).update(name.decode() for name in names)
    return found


def test_one_library_for_both_architectures(kernels):
    assert set(kernels) == {"gfx90a", "gfx942"}


def test_every_kernel_of_the_catalogue_is_there(kernels):
    wanted = {f"{tile.kernel}_{kind}" for tile in COMPILED_TILES for kind in tile.k_steps["rocm"]}
    for arch in kernels:
        assert kernels[arch] >= wanted
        assert "write_buffers" in kernels[arch]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_what_the_library_needs():
    dynamic = subprocess.run(["readelf", "-dW", LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    (hip,) = [name for name in needed if "hip" in name]
    assert re.fullmatch(r"libamdhip64\.so\.\d+", hip)
    symbols = subprocess.run(
        ["readelf", "--dyn-syms", "-W", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    imported = re.findall(r"UND +(\S*hip\S*)@(\S+)", symbols)
    assert {"hipLaunchKernel", "__hipRegisterFatBinary"} <= {name for name, _ in imported}
    assert {version for _, version in imported} == {"hip_4.2"}
    assert "PyInit__rocm" in symbols


def test_the_handler_is_registered_for_rocm():
    backend = BACKENDS["rocm"]
    if backend.module is None:
        pytest.skip(f"the library does not load: {backend.absent}")
    if backend.live_devices():
        pytest.skip("JAX's ROCm client has taken it over")
    waiting = {name for name, *_ in xla_client._custom_callback["ROCM"]}  # until a client for the platform comes
    assert TARGET_NAME in {name if isinstance(name, str) else name.decode() for name in waiting}
