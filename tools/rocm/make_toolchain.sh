#!/usr/bin/env bash
# Lays out FOLDER as clang and CMake expect a ROCm install to look, for building the ROCm backend where there is none:
#
#   tools/rocm/make_toolchain.sh FOLDER          (x86-64 Linux; ~170 MB are downloaded)
#   VBGEMM_HIP=ON ROCM_PATH=FOLDER pip install .
#
# It needs clang 19 with lld and AMD's device libraries (Debian 12: clang-19 clang-tools-19 lld-19 llvm-19 rocm-device-libs) and pip.
# What it takes: the HIP 6.2 headers from the wheel triton==3.5.1, the device libraries' bitcode, and a stub of libamdhip64.so.7 to link
# against. The stub lies in FOLDER/stub, where no program finds it by itself; every call of it is an error. What is built runs with the
# real library of ROCm 7.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?usage: make_toolchain.sh FOLDER}
clang=${CLANG:-clang-19}
bitcode=${DEVICE_LIBS:-/usr/lib/x86_64-linux-gnu/amdgcn/bitcode}
headers=triton==3.5.1  # its newer releases may bring other HIP headers

missing() { echo "make_toolchain.sh: $1" >&2; exit 1; }
command -v "$clang" >/dev/null || missing "no $clang: install clang 19, or set CLANG"
command -v ld.lld-19 >/dev/null || command -v ld.lld >/dev/null || missing "no ld.lld: install lld-19"
[ -f "$bitcode/ocml.bc" ] || missing "no AMD device libraries in $bitcode: install rocm-device-libs, or set DEVICE_LIBS"

llvm=$(dirname "$(readlink -f "$(command -v "$clang")")")
mkdir -p "$folder"/{amdgcn/bitcode,bin,include,stub,lib/cmake/hip-lang,share/hip}
folder=$(cd "$folder" && pwd)

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"${PYTHON:-python3}" -m pip download --quiet --no-deps --dest "$wheels" "$headers"
"${PYTHON:-python3}" - "$wheels" "$folder" <<'PYTHON'
import pathlib, sys, zipfile
wheels, folder = map(pathlib.Path, sys.argv[1:])
prefix = "triton/backends/amd/include/"
with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
    for name in wheel.namelist():
        if name.startswith(prefix) and not name.endswith("/"):
            target = folder / "include" / name.removeprefix(prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(name))
PYTHON

cp "$bitcode"/*.bc "$folder/amdgcn/bitcode/"
# Device libraries older than gfx942 know its sample, gfx940; the file holds one constant, the version of the instruction set.
if [ ! -f "$folder/amdgcn/bitcode/oclc_isa_version_942.bc" ]; then
  "$llvm/llvm-dis" -o - "$bitcode/oclc_isa_version_940.bc" | sed 's/i32 9400/i32 9402/' |
    "$llvm/llvm-as" -o "$folder/amdgcn/bitcode/oclc_isa_version_942.bc"
fi

version() { sed -n "s/^#define HIP_VERSION_$1 //p" "$folder/include/hip/hip_version.h"; }
printf 'HIP_VERSION_MAJOR=%s\nHIP_VERSION_MINOR=%s\nHIP_VERSION_PATCH=%s\n' "$(version MAJOR)" "$(version MINOR)" "$(version PATCH)" \
  > "$folder/share/hip/version"

"$clang" -shared -fPIC -O1 -Wl,-soname,libamdhip64.so.7 -Wl,--version-script="$here/libamdhip64.map" \
  -o "$folder/stub/libamdhip64.so.7" "$here/libamdhip64_stub.c"
ln -sf ../stub/libamdhip64.so.7 "$folder/lib/libamdhip64.so"  # by this name linkers find it, programs don't
cat > "$folder/bin/hipconfig" <<END
#!/bin/sh
case \$1 in --hipclangpath | -l) printf %s "$llvm" ;; --rocmpath | -R | --path) printf %s "$folder" ;; *) exit 1 ;; esac
END
chmod +x "$folder/bin/hipconfig"
cp "$here/hip-lang-config.cmake" "$folder/lib/cmake/hip-lang/"
echo "$folder: HIP $(version MAJOR).$(version MINOR) headers, device libraries, a stub of libamdhip64.so.7"
