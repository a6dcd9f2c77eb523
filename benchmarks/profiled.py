"""The time of the kernels of a call on a GPU, in a profile of JAX: without launches and the gaps between kernels."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax


def kernels_us(function: Callable[..., Any], *args: Any, calls: int = 5) -> float:
    """The time of all kernels of a call, in a profile."""
    for _ in range(2):
        jax.block_until_ready(function(*args))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready([function(*args) for _ in range(calls)])
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = [
            plane for plane in jax.profiler.ProfileData.from_file(str(file)).planes if "/device:GPU" in plane.name
        ]
        lines = [line for plane in planes for line in plane.lines if line.name.startswith("Stream")]
        return sum(event.duration_ns for line in lines for event in line.events) / calls / 1e3
