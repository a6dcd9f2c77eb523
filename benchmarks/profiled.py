"""The time of the kernels of a call on a GPU, in a profile of JAX: without launches and the gaps between kernels."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax


def kernels(function: Callable[..., Any], *args: Any, calls: int = 5) -> Iterator[Any]:
    """The kernels of so many calls, as events of a profile (`duration_ns`, `name`, `stats`)."""
    for _ in range(2):
        jax.block_until_ready(function(*args))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready([function(*args) for _ in range(calls)])
        (file,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(file))
    for plane in data.planes:
        for line in plane.lines:
            if "/device:GPU" in plane.name and line.name.startswith("Stream"):
                yield from line.events


def kernels_us(function: Callable[..., Any], *args: Any, calls: int = 5) -> float:
    """The time of all kernels of a call, in a profile."""
    return sum(event.duration_ns for event in kernels(function, *args, calls=calls)) / calls / 1e3
