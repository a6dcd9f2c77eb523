"""python -m jax_vbgemm: shows backends and plans, runs the demo, calibrates the cost model."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import jax

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import DEVICES, PLANNERS, device_spec
from jax_vbgemm._src.tools.calibrate import PRECISIONS
from jax_vbgemm._src.tools.shapes import calibration_sample, read_shapes

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "fp16": "float16", "f32": "float32", "fp32": "float32"}
_DTYPES |= {"f64": "float64", "fp64": "float64"}


def show_backends() -> None:
    """Prints one line for each backend: its devices, or why it is absent."""
    print(f"jax_vbgemm {vb.__version__}, jax {jax.__version__}, default backend: {jax.default_backend()}")
    for name, backend in backends.BACKENDS.items():
        if backend.module is None:
            print(f"  {name:5} absent: {backend.absent}")
            continue
        devices = backend.live_devices()
        kinds = ", ".join(sorted({device.device_kind for device in devices})) or why_no_device(backend)
        detail = f", {_core.isa()} kernel" if name == "cpu" else ""
        device = backends.planning_device(name)
        planned = device.note or f"planned as {device.name}"
        print(f"  {name:5} {kinds}{detail}; dtypes {', '.join(backend.dtypes)}; {planned}")


def why_no_device(backend: backends.Backend) -> str:
    """The reason why JAX sees no device of a backend whose module is installed."""
    if backend.name == "cuda":
        assert backend.module is not None
        needed, known = backend.module.cuda_versions()
        if known == 0:
            return "built, but this machine has no NVIDIA driver"
        if known // 1000 < needed // 1000:
            return f"built for CUDA {needed // 1000}, but the driver is for CUDA {known // 1000}: install a newer one"
    return "built, but JAX sees no such device"


def run_calibration(options: argparse.Namespace) -> None:
    import scipy.optimize  # noqa: F401  (if SciPy is missing, this fails before minutes of measuring)

    from jax_vbgemm._src.planner.tables.device_table import calibration_file
    from jax_vbgemm._src.tools import calibrate

    precisions = options.precision or list(calibrate.PRECISIONS)
    unknown = [name for name in precisions if name not in calibrate.PRECISIONS]
    if unknown:
        raise ValueError(f"--precision: unknown name {unknown[0]!r}; known are {', '.join(calibrate.PRECISIONS)}")
    device = backends.default_device() if options.device is None else device_spec(options.device)
    if device.device_type != "gpu":
        raise ValueError(f"--device: {device.name} has no tiles to calibrate, only GPUs do")
    if options.measured:
        points = calibrate.read_driver(options.measured, options.workloads, device)
    elif device.name != backends.default_device().name:
        raise ValueError(f"--device: this machine has no {device.name}; measure on one, and pass the files with --from")
    else:
        sample = calibration_sample()
        points = calibrate.measured_here(device, sample, precisions, calibrate.measure_in_loop, print)
    output = options.output or calibration_file(device.name)
    if options.output is None and device.name not in DEVICES:
        raise ValueError(f"--output: {device.name} has no folder in the device table; name a file")
    calibrate.calibrate(points, device, output, options.commit, print)


def run_profile(options: argparse.Namespace) -> None:
    from jax_vbgemm._src.tools import calibrate
    from jax_vbgemm._src.tools.profile import profile

    if options.precision not in calibrate.PRECISIONS:
        known = ", ".join(calibrate.PRECISIONS)
        raise ValueError(f"--precision: unknown name {options.precision!r}; known are {known}")
    device = backends.default_device()
    if device.device_type != "gpu":
        raise ValueError(f"profile: the model of TSM2 and ISM2 is for GPUs, but the device is a {device.device_type}")
    print(profile(device, *calibrate.PRECISIONS[options.precision], calibrate.measure_in_loop, print))


def main(arguments: list[str] | None = None) -> int:
    """The command line. If its output pipe is closed (`| head -1`), it ends without a message, with SIGPIPE's
    status."""
    try:
        try:
            return run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail
        return 128 + 13


def run(arguments: list[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jax_vbgemm", description=__doc__)
    known = ", ".join(PRECISIONS)
    commands = parser.add_subparsers(dest="command", title="commands (without one: show the backends)")
    parser.add_argument("--version", action="version", version=f"jax_vbgemm {vb.__version__}")
    plan = commands.add_parser("plan", help="print the plan for a file of 'M N K' lines")
    plan.add_argument(
        "file",
        type=Path,
        help="a line 'M N K' or 'M N K batch' for each product; # begins a comment; 'dtype bf16' and "
        "'precision highest' may stand in it, too",
    )
    plan.add_argument("--device", help=f"one of {', '.join(DEVICES)}; default: the one JAX would use")
    plan.add_argument("--dtype", help="default: the file's, or float32; bf16, f16, f32 and f64 are understood, too")
    plan.add_argument("--precision", choices=("default", "high", "highest"), help="of float32 on tensor cores")
    plan.add_argument("--planner", default="auto", help=f"one of {', '.join(PLANNERS)}")
    plan.add_argument(
        "--plot", type=Path, metavar="PNG", help="draw the plan, too: blocks over multiprocessors and time"
    )
    demo = commands.add_parser("demo", help="GoogLeNet's inception blocks, forward and gradient, checked and timed")
    demo.add_argument("--batch", type=int, default=1, help="images (default: 1)")
    calibrate = commands.add_parser("calibrate", help="measure every tile on this GPU and fit the cost model to it")
    calibrate.add_argument(
        "--from", dest="measured", type=Path, nargs="+", metavar="CSV", help="fit what gpu_driver measured instead"
    )
    calibrate.add_argument("--workloads", type=Path, help="folder of the shape files that these CSV files name")
    calibrate.add_argument("--device", help="entry of the device table; default: that of the GPU that is here")
    calibrate.add_argument("--precision", nargs="+", help=f"only some of {known}")
    calibrate.add_argument(
        "--output", type=Path, help="default: calibration.csv in the device's folder, which plans use"
    )
    calibrate.add_argument("--commit", default=vb.__version__, help="of the kernels; default: the package's version")
    profile = commands.add_parser(
        "profile", help="measure the latencies, t1 and tcf of tall_skinny's model on this GPU"
    )
    profile.add_argument("--precision", default="fp32", help=f"one of {known} (default: fp32)")
    options = parser.parse_args(arguments)

    if options.command is None:
        show_backends()
        return 0
    if options.command == "demo":
        if options.batch < 1:
            parser.error(f"argument --batch: must be at least 1, not {options.batch}")
        try:
            from jax_vbgemm._src.tools import demo as googlenet
        except ImportError as error:
            parser.error(f"the demo needs the extra 'cli': pip install jax-vbgemm[cli] ({error})")
        return googlenet.run(options.batch)
    if options.command == "profile":
        try:
            run_profile(options)
        except ValueError as error:
            parser.error(str(error))
        return 0
    if options.command == "calibrate":
        try:
            run_calibration(options)
        except ImportError as error:
            parser.error(f"calibrate needs the extra 'cli': pip install jax-vbgemm[cli] ({error})")
        except (OSError, ValueError) as error:
            parser.error(str(error))
        return 0
    try:
        problems, file_options = read_shapes(options.file)
        dtype = options.dtype or file_options.get("dtype", "float32")
        made = vb.plan(
            problems,
            dtype=_DTYPES.get(dtype, dtype),
            device=options.device,
            planner=options.planner,
            precision=options.precision or file_options.get("precision"),
        )
        print(made)
        if options.plot is not None:
            made.plot(options.plot)
    except (ImportError, OSError, ValueError, TypeError) as error:
        parser.error(str(error))
    return 0
