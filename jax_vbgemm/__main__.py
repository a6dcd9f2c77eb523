"""python -m jax_vbgemm: see jax_vbgemm/_src/tools/cli.py."""

import sys

from jax_vbgemm._src.tools.cli import main as main

if __name__ == "__main__":
    sys.exit(main())
