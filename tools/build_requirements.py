"""Prints what has to be installed before the package can be built in this environment, for `./run`.

In place of the jaxlib that pip's isolated build takes, which is the oldest, it has the JAX that will run the result.
"""

import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())

if __name__ == "__main__":
    build = [name for name in PROJECT["build-system"]["requires"] if not name.startswith("jaxlib")]
    cmake = "cmake" + PROJECT["tool"]["scikit-build"]["cmake"]["version"]
    print(*build, cmake, "ninja", *PROJECT["project"]["dependencies"], sep="\n")
