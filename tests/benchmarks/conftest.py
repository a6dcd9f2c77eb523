"""Puts the folder of the benchmarks on the path, as they are scripts that import each other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
