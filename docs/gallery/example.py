"""Runs a script of examples/ as a user starts it, and shows what it prints and the pictures that it writes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from IPython.display import Image, display

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, *options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(" ".join(("$ python", f"examples/{script}", *options)))
        command = [sys.executable, str(EXAMPLES / script), *options]
        environment = os.environ | {"COLUMNS": "100", "MPLCONFIGDIR": folder}
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # Jupyter's; a progress bar would be a line a step
            environment.pop(name, None)
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        print(result.stdout)
        if result.returncode:
            raise RuntimeError(f"{script} ended with {result.returncode}: {result.stderr}")
        for picture in sorted(Path(folder).glob("*.png")):
            display(Image(picture.read_bytes()))
