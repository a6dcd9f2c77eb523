"""vb.autotune: measures candidate plans on a device of this machine and stores the fastest one's name for `auto`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.api import batched_matmul
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import (
    Catalogue,
    DeviceSpec,
    Plan,
    Planner,
    catalogue_for,
    kind_of,
    plan_problems,
)
from jax_vbgemm._src.planner.cores import Cores
from jax_vbgemm._src.planner.model.tile_families import worth_trying
from jax_vbgemm._src.planner.papers.uniform import Uniform
from jax_vbgemm._src.planner.registry import REGISTERED
from jax_vbgemm._src.planner.search.makespan import Makespan, narrower_searches
from jax_vbgemm._src.planner.tuned import OFF, VARIABLE, cache_file, check_file, key_of, store, with_arithmetic
from jax_vbgemm._src.problem import Problem, ProblemSizes, problems_of
from jax_vbgemm._src.tools.timing import seconds_in_loop
from jax_vbgemm._src.util.shown import shown

# A plan is measured if its predicted time is within this factor of the best; the error of the model is smaller.
_MAX_RATIO = 1.5
_MOST_TILES = 8


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of `autotune`.

    Attributes:
      plan: the fastest `Plan`, which `planner="auto"` takes from now on.
      winner: the name of the candidate that this plan belongs to.
      seconds: the median time of a call with each candidate, in seconds, by the candidate's name.
      default: the name of the candidate whose plan the cost model alone would choose, None if it is not known.
    """

    plan: Plan
    winner: str
    seconds: Mapping[str, float]
    default: str | None = None

    def __repr__(self) -> str:
        """The winner, its gain over the default plan, and a line for each candidate; `print(tuned.plan)` shows the
        plan."""
        ordered = sorted(self.seconds.items(), key=lambda item: item[1])
        lines = [
            f"  {1e6 * seconds:10.1f} us  {name}{', the default' if name == self.default else ''}"
            for name, seconds in ordered
        ]
        gain = ""
        if self.default == self.winner:
            gain = ", and is the default plan: nothing was gained"
        elif self.default is not None:
            gain = f", {self.seconds[self.default] / self.seconds[self.winner]:.2f} times as fast as the default plan"
        return "\n".join((f"Tuned: {self.winner!r} is the fastest of {len(lines)}{gain}", *lines))


def autotune(
    problems: Sequence[Problem | tuple[int, ...]],
    *,
    dtype: Any = "float32",
    precision: Any = None,
    device: jax.Device | None = None,
    rounds: int = 7,
    cache: str | os.PathLike[str] | None = None,
) -> Tuned:
    """Measures candidate plans for these shapes inside jit, and keeps the fastest: `auto` takes it from then on.

    Candidates are the plan of `auto`, the plans of its search with the tiles of one kernel only and without each of the
    tiles in that plan, the plans of the papers' planners (`coordinated` with either batching), and plans with one tile
    shape for all problems. Candidates whose predicted time is close to the best one's are measured. The winner is
    stored in a file: that of the environment variable VBGEMM_CACHE, by default ~/.cache/jax_vbgemm/autotune.json (or
    below XDG_CACHE_HOME, if set). Programs lowered later, in this process or another, use the winner wherever the same
    problems, in the same order and with the same transposes, are planned for the same entry of the device table with
    the same kernels and arithmetic. A plan depends only on the content of the file when the program is lowered:
    programs compiled before do not change, processes that lower one program together need the same file, and with
    VBGEMM_CACHE=off the cost model alone decides.

    Args:
      problems: Problem objects or plain (m, n, k) tuples, as for `plan`: those of a call, leaf by leaf; `batch` is the
        product of the leading dimensions. The products of a gradient are other problems.
      dtype: of the operands; it must have kernels on the device.
      precision: as for `batched_matmul`; it counts for float32 on GPUs with tensor cores.
      device: where to measure; None: JAX's default device.
      rounds: the number of timings of each candidate, of which the median counts.
      cache: another file to store the winner in; programs use it where VBGEMM_CACHE names it.

    Returns:
      A `Tuned`.

    Raises:
      ValueError: no problem has any arithmetic, a size is negative, `dtype` or `precision` is unknown, `rounds` is
        below 1, VBGEMM_CACHE is "off" and no `cache` is given, or the file isn't one of tuned plans.
      TypeError: a size is not an integer, or `device` is not a jax.Device.
      NotImplementedError: `device` has no kernels for `dtype`.
      OSError: the file can't be written.

    Examples:
      >>> import jax_vbgemm as vb
      >>> tuned = vb.autotune([(64, 784, 192), (96, 784, 192)], rounds=1)
      >>> tuned.winner in tuned.seconds
      True
    """
    return tune(problems, dtype, precision, device, rounds, cache, measure)


def tune(
    problems: Sequence[Problem | tuple[int, ...]],
    dtype: Any,
    precision: Any,
    device: jax.Device | None,
    rounds: int,
    cache: str | os.PathLike[str] | None,
    measured: Callable[..., Sequence[float]],
) -> Tuned:
    """`autotune` with a given function that measures."""
    if not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"autotune: rounds = {rounds!r} must be a whole number from 1 on")
    file = cache_file() if cache is None else Path(cache).expanduser()
    if file is None:
        raise ValueError(f"autotune: {VARIABLE} is {OFF!r} and there is no cache=: nowhere to keep the winner")
    check_file(file)
    kept = with_arithmetic(problems_of(problems))
    if not kept:
        raise ValueError("autotune: problems has none with any arithmetic")
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        raise ValueError(f"autotune: dtype is {dtype!r}, which is unknown") from None
    device = _device(device)
    platform = backends.platform_of(device)
    backend = backends.BACKENDS.get(platform)
    if backend is None or backend.module is None or name not in backend.dtypes:
        raise NotImplementedError(f"autotune: device {device.device_kind!r} has no kernels for dtype {name}")
    spec = backends.planning_device(platform)
    precision = canonical_precision(precision)
    kind = kind_of(name, precision_name(precision), spec)
    catalogue = catalogue_for(kind, spec)

    candidates = candidate_planners(kept, spec, catalogue)
    times = measured(list(candidates.values()), kept, name, precision, device, rounds)
    seconds = dict(zip(candidates, times, strict=True))
    winner = min(seconds, key=lambda name: seconds[name])
    entry = {
        "winner": winner,
        "microseconds": {name: round(value * 1e6, 3) for name, value in seconds.items()},
        "measured_on": f"{device.device_kind}, jax {jax.__version__}",
        "problems": len(kept),
    }
    store(file, key_of(kept, spec, catalogue), entry)
    plans = {name: plan_problems(kept, kind, spec, planner) for name, planner in candidates.items()}
    chosen = _content(plan_problems(kept, kind, spec, tuned=False))
    default = next((name for name, plan in plans.items() if _content(plan) == chosen), None)
    return Tuned(plans[winner], winner, seconds, default)


def candidate_planners(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> dict[str, Planner]:
    """The candidate planners by their names in the file; of planners that make the same plan only the first."""
    # Only tiles that are worth trying: the predicted times of other tiles were never checked.
    worth = worth_trying(catalogue, ProblemSizes.of(problems))
    uniform = {f"uniform {tile.name}/{tile.threads}": Uniform(tile.key) for tile in worth}
    registered = [each.candidates(problems, device, catalogue) for each in REGISTERED]
    planners: dict[str, Any] = {name: planner for each in registered for name, planner in each.items()} | uniform
    if device.device_type == "cpu":
        planners = {"cores": Cores()} | planners
    else:
        own = Makespan()
        narrower = narrower_searches(own.draft(problems, device, catalogue).runs, catalogue, worth.kernels)
        planners = {"makespan": own} | {f"makespan {name}": search for name, search in narrower.items()} | planners
    drafts = {name: planner.draft(problems, device, catalogue) for name, planner in planners.items()}
    limit = _MAX_RATIO * min(draft.seconds for draft in drafts.values())
    near = [name for name, draft in drafts.items() if draft.seconds <= limit]
    for variants in registered:  # for each planner, either all variants are measured or none
        if set(near) & set(variants):
            near += [name for name in variants if name not in near]
    tiles = sorted((name for name in near if name in uniform), key=lambda name: drafts[name].seconds)[:_MOST_TILES]
    found: dict[bytes, tuple[str, Planner]] = {}
    for name in (*(name for name in near if name not in uniform), *tiles):
        found.setdefault(_content(drafts[name].build()), (name, planners[name]))
    return dict(found.values())


def _content(plan: Plan) -> bytes:
    runs, block_first, _ = plan.launch_form()
    columns = [getattr(runs, name).tobytes() for name in runs.__dataclass_fields__]
    return b"|".join((*columns, b"" if block_first is None else block_first.tobytes()))


def measure(
    planners: Sequence[Planner],
    problems: Sequence[Problem],
    dtype: str,
    precision: Any,
    device: jax.Device,
    rounds: int,
) -> list[float]:
    """Seconds of one call with each planner, inside a jitted loop on `device`; the operands are random."""
    with jax.enable_x64(True), jax.default_device(device):
        As, Bs = _operands(problems, dtype)

        def with_planner(planner: Planner) -> Callable[..., Any]:
            flags = {
                "transpose_a": [problem.transpose_a for problem in problems],
                "transpose_b": [problem.transpose_b for problem in problems],
                "symmetric": [problem.symmetric for problem in problems],
            }
            return lambda As, Bs: batched_matmul(
                As, Bs, **flags, precision=precision, planner=planner, implementation="kernel"
            )

        spec = backends.planning_device(backends.platform_of(device))
        expected = plan_problems(problems, kind_of(dtype, precision_name(precision), spec), spec, tuned=False)
        functions = [with_planner(planner) for planner in planners]
        return seconds_in_loop(functions, (As, Bs), expected.predicted_seconds, rounds)


def _operands(problems: Sequence[Problem], dtype: str) -> tuple[list[jax.Array], list[jax.Array]]:
    keys = iter(jax.random.split(jax.random.key(0), 2 * len(problems)))

    def random(batch: int, rows: int, cols: int, transposed: bool) -> jax.Array:
        shape: tuple[int, ...] = (cols, rows) if transposed else (rows, cols)
        shape = shape if batch == 1 else (batch, *shape)
        if jnp.issubdtype(dtype, jnp.integer):
            return jax.random.randint(next(keys), shape, -128, 128, dtype)
        drawn = "float32" if jnp.dtype(dtype).itemsize == 1 else dtype  # jax.random draws no 8-bit floats
        return jax.random.normal(next(keys), shape, jnp.dtype(drawn)).astype(dtype)

    As = [random(p.batch, p.m, p.k, p.transpose_a) for p in problems]
    return As, [random(p.batch, p.k, p.n, p.transpose_b) for p in problems]


def _device(device: jax.Device | None) -> jax.Device:
    if device is None:
        default = jax.config.jax_default_device  # type: ignore[attr-defined]
        return default if isinstance(default, jax.Device) else jax.devices(default)[0]
    if not isinstance(device, jax.Device):
        here = "autotune measures on a device of this machine, and plan alone takes the names of others"
        raise TypeError(f"autotune: device = {shown(device)} must be a jax.Device, such as jax.devices()[0]: {here}")
    return device
