"""Prints the packages that must be installed before this package can be built in this environment, for `./run`.

pip's isolated build takes the oldest supported jaxlib; this list has instead the JAX that will run the result.
"""

import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())

if __name__ == "__main__":
    build = [name for name in PROJECT["build-system"]["requires"] if not name.startswith("jaxlib")]
    cmake = "cmake" + PROJECT["tool"]["scikit-build"]["cmake"]["version"]
    print(*build, cmake, "ninja", *PROJECT["project"]["dependencies"], sep="\n")
