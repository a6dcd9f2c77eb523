"""Installs wheels into a fresh environment outside the checkout and runs the README's first example there:

    python tools/try_wheel.py dist/jax_vbgemm-*-cp311-*.whl

Several wheels (the package and its plugin) go into one environment. Their dependencies come from PyPI. With
--environment the environment is kept, so that tests can run against the installed package.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def first_example() -> str:
    block = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1] + "print([C.shape for C in Cs])\nassert vb.available_backends()\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--python", default=sys.executable, help="that the environment is made with; default: this one")
    parser.add_argument("--with", dest="others", nargs="*", default=[], help="packages to install beside them")
    parser.add_argument("--environment", type=Path, help="a new folder that it is made in; default: a temporary one")
    options = parser.parse_args()
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as folder:

        def call(*command: object) -> None:
            subprocess.run([*map(str, command)], check=True, cwd=folder, env=clean)

        python = (options.environment or Path(folder) / "venv").resolve() / "bin" / "python"
        call(options.python, "-m", "venv", python.parents[1])
        wheels = [wheel.resolve() for wheel in options.wheels]
        call(python, "-m", "pip", "install", "--quiet", *wheels, *options.others)
        call(python, "-c", first_example())
        call(python, "-m", "jax_vbgemm")


if __name__ == "__main__":
    main()
