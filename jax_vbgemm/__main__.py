"""python -m jax_vbgemm: which kernels are here, what a plan looks like, and the demo."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax

import jax_vbgemm as vb
from jax_vbgemm import _core, backends
from jax_vbgemm.shapes import read_problems


def show_backends() -> None:
    """One line a backend: what it runs on, or why it is absent."""
    print(f"jax_vbgemm {vb.__version__}, jax {jax.__version__}, default backend: {jax.default_backend()}")
    for name, backend in backends.BACKENDS.items():
        if backend.module is None:
            print(f"  {name:5} absent: {backend.absent}")
            continue
        devices = backend.live_devices()
        kinds = ", ".join(sorted({device.device_kind for device in devices})) or "built, but JAX sees no such device"
        detail = f", {_core.isa()} kernel" if name == "cpu" else ""
        device = backends.planning_device(name).name
        print(f"  {name:5} {kinds}{detail}; dtypes {', '.join(backend.dtypes)}; planned as {device}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jax_vbgemm", description=__doc__)
    commands = parser.add_subparsers(dest="command", title="commands (without one: show the backends)")
    plan = commands.add_parser("plan", help="print the plan for a file of 'M N K' lines")
    plan.add_argument("file", type=Path)
    plan.add_argument("--device", help="such as h100, a100, mi210, cpu; default: the one JAX would use")
    plan.add_argument("--dtype", default="float32")
    plan.add_argument("--planner", default="auto")
    demo = commands.add_parser("demo", help="GoogLeNet's inception blocks, forward and gradient, checked and timed")
    demo.add_argument("--batch", type=int, default=1, help="images (default: 1)")
    options = parser.parse_args(arguments)

    if options.command is None:
        show_backends()
        return 0
    if options.command == "demo":
        if options.batch < 1:
            parser.error(f"argument --batch: must be at least 1, not {options.batch}")
        try:
            from jax_vbgemm import demo as googlenet
        except ImportError as error:
            parser.error(f"the demo needs the extra 'cli': pip install jax-vbgemm[cli] ({error})")
        return googlenet.run(options.batch)
    try:
        print(vb.plan(read_problems(options.file), dtype=options.dtype, device=options.device, planner=options.planner))
    except (OSError, ValueError, TypeError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
