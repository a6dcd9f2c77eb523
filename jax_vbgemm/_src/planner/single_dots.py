"""Decides by the cost model which members of a batch XLA should compute by single dots."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jax_vbgemm._src.planner.entry import Planner, plan_problems
from jax_vbgemm._src.planner.tables.catalogue import ELEMENT_BYTES, kind_of
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tables.rules import CallCosts, DotRates
from jax_vbgemm._src.problem import Problem


def _data_sheet_rates(device: DeviceSpec) -> DotRates:
    """The rates of a device whose dots were not measured: those of its data sheet, on tensor cores where it has
    them."""
    kinds = ("float32", "tf32", "float64", "bfloat16", "float16")
    tensor = tuple((kind, device.tensor_rate(kind)) for kind in kinds if device.has_tensor(kind))
    return DotRates((*device.peak_rates, *tensor), device.launch_seconds, device.bandwidth)


def dots_of(device: DeviceSpec) -> DotRates:
    """The speed of XLA's dots on a device, measured or by its data sheet."""
    return device.dots or _data_sheet_rates(device)


def calls_of(device: DeviceSpec) -> CallCosts:
    """The overhead of a call besides its kernels; if it was not measured, a copy counts as one more kernel."""
    if device.calls is not None:
        return device.calls
    return CallCosts(
        launch=None, array=_ARRAY_OF_A_GPU, copy=device.launch_seconds, clear_gain=1.4, least_gain=4e-6, block=0.0,
        element=0.0, small_bytes=0, fused_gain=20e-6, signed_gain=60e-6, fused_side=8,
        fused_elements=4096, fuses_operands=True,
    )  # fmt: skip


# The gain that a call must bring on a GPU was chosen by whole programs on an H100 (jax 0.11.2, float32 as TF32). With
# clear_gain 1.25 and no other rule, a training step of nequix took 25.6 ms in place of 22.0, as XLA had fused products
# with sides of 3 to 7 (Clebsch-Gordan coefficients) with the arithmetic of edges; with calls that save 10 us by the
# prediction 21.8 in place of 21.3. Small products with such a side are kernels of their own: a chain of block-sparse
# tensors took 959 us with them in its calls and 1209 without, its gradient 3916 and 4626 (H200). A layer of
# species-wise networks (FeNNol) gains 4 to 9 us by the prediction, and the whole program 1.1 to 1.2 times. The norm of
# a 2 x 2 PEPS with bonds of 6 took 202 us with six calls and 152 without.

# Seconds in which XLA writes the address of one array into the command buffer of a call on a GPU, estimated from a PEPS
# on an H100: eleven calls with 8900 arrays, 454 us for the program. Without command buffers an array takes 0.19 us.
_ARRAY_OF_A_GPU = 0.05e-6


_SLICE_OF_K = 1024  # the shortest slice of K that cuBLAS and Triton are assumed to make


def dot_seconds(problem: Problem, dtype: str, precision: str, device: DeviceSpec, *, bare: bool = False) -> float:
    """Predicted seconds of XLA's dot for one problem, including scaling and accumulation unless it is `bare`.

    precision: "default", "high" or "highest"; except at "highest", a GPU's dots multiply float32 in TF32.
    """
    known = dots_of(device)
    scalar = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    rates = dict(known.rates)
    rate = (
        rates.get("tf32" if scalar == "float32" and precision != "highest" else scalar)
        or rates.get(scalar)
        or rates["float32"]
    )
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    products = float(batch) * m * n * k
    if known.tiles:
        # Wave quantization: a partial wave of tiles takes as long as a full one. A bare dot of few tiles with a long K
        # is divided along K; its second kernel is ignored, because this is a lower bound of the time of such a dot.
        def waves(edge: int, slices: int) -> float:
            tiles = batch * math.ceil(m / edge) * math.ceil(n / edge) * slices
            return math.ceil(tiles / device.units) * edge**2 * float(math.ceil(k / slices))

        def slices(edge: int) -> int:
            tiles = batch * math.ceil(m / edge) * math.ceil(n / edge)
            return max(min(device.units // max(tiles, 1), k // _SLICE_OF_K), 1) if bare else 1

        products = min(waves(edge, slices(edge)) / share for edge, share in known.tiles) * device.units
    flops = 8.0 if dtype.startswith("complex") else 2.0
    # The result is written, and then read and written once more to scale it and to add to it.
    bytes_moved = float(batch) * (m * k + k * n + (1 if bare else 3) * m * n) * ELEMENT_BYTES[dtype]
    launch = known.launch
    inlined = bool(known.inlined) and (max(m, n, k) <= known.inlined or min(m, n) == 1)
    if bare and inlined:
        launch = known.inlined_launch
    elif bare and known.bare_launch is not None:
        launch = known.bare_launch
    arithmetic = flops * products / rate
    if bare and not inlined:
        for width, ratio in known.narrow:
            if n * ELEMENT_BYTES[dtype] <= width:
                arithmetic = ratio * _kernel_seconds(problem, kind_of(dtype, precision, device), device)
                break
    return launch + max(arithmetic, bytes_moved / known.bandwidth)


@lru_cache(maxsize=1024)
def _kernel_seconds(problem: Problem, kind: str, device: DeviceSpec) -> float:
    """Predicted seconds of this package's kernels for one product, without the launch."""
    return max(plan_problems([problem], kind, device, tuned=False).predicted_seconds - device.launch_seconds, 0.0)


@dataclass(frozen=True)
class Split:
    """Which members leave the batch (`alone`), and the predicted seconds of this split, of one batch, and of dots only.

    members: the seconds of each member, which add up to `seconds`. The time of the batch is divided among its members
    in proportion to their arithmetic.
    """

    alone: tuple[bool, ...]
    members: tuple[float, ...]
    seconds: float
    batched_seconds: float
    dots_seconds: float


@lru_cache(maxsize=64)
def split(
    rounds: tuple[tuple[Problem, ...], ...],
    dtype: str,
    precision: str,
    device: DeviceSpec,
    planner: str | Planner = "auto",
) -> Split:
    """Splits members between one batch and XLA's single dots, so that the predicted time is the smallest.

    A batch saves launches and fills the device with small products. For a product that fills the device by itself, the
    vendor's library is as fast or faster. So the members above some size leave the batch, and several sizes (in factors
    of 4 of arithmetic) are tried.

    Args:
      rounds: batches of products that run one after another; rounds[r][i] is the product of member i in batch r.
      dtype: of the operands, one with kernels.
      precision: "default", "high" or "highest": how float32 is multiplied, in batches (`kind_of`) and by dots.
      device, planner: as for `plan`.
    """
    members = len(rounds[0]) if rounds else 0
    alone_seconds = [sum(dot_seconds(r[i], dtype, precision, device) for r in rounds) for i in range(members)]
    return fastest_split(
        rounds, alone_seconds, [0.0] * members, 0.0, kind_of(dtype, precision, device), device, planner
    )


@dataclass(frozen=True)
class Member:
    """A sum of products, computed by one call, or by XLA's single dots and additions.

    problem: the sum as the planner sees it, one product whose K is the total K of its products.
    dots: the products by themselves.
    arrays: the number of arrays that are passed to the call or returned by it, without those that an earlier member
      counts.
    copied: the numbers of elements of the arrays among these that have to be transposed into a copy for the call.
    """

    problem: Problem
    dots: tuple[Problem, ...]
    arrays: int
    copied: tuple[int, ...] = ()


class Alternative(NamedTuple):
    """Another way to compute all members: XLA's products of blocks that are copied together.

    copies: the number of these blocks that consist of several. blocks, elements: how many go into them. signed: whether
    blocks are multiplied by signs on the way.
    """

    dots: tuple[Problem, ...]
    copies: int
    blocks: int
    elements: int
    signed: bool = False


@dataclass(frozen=True)
class ChosenSplit(Split):
    """The split; or `alternative`, if that is the fastest way. All members are then `alone`."""

    alternative: bool = False


@lru_cache(maxsize=256)
def worthwhile(
    members: tuple[Member, ...],
    dtype: str,
    precision: str,
    device: DeviceSpec,
    planner: str | Planner = "auto",
    alternative: Alternative | None = None,
    most_dots: float = math.inf,
) -> ChosenSplit:
    """The split of a program's products into a call and dots. Without a call, all are dots or the alternative.

    A call has to be clearly faster (`CallCosts`), including the time to pass and to transpose its arrays. More than
    `most_dots` products never become dots, because they would take long to compile.

    The other arguments are those of `split`.
    """
    costs, bandwidth = calls_of(device), dots_of(device).bandwidth
    size = ELEMENT_BYTES[dtype]
    elements = max((max(p.m * p.k, p.k * p.n, p.m * p.n) * p.batch for x in members for p in x.dots), default=0)
    launch = 0.0 if costs.launch is None else costs.launch - device.launch_seconds

    def bare(dots: Sequence[Problem]) -> float:
        return sum(dot_seconds(dot, dtype, precision, device, bare=True) for dot in dots)

    def alone(member: Member) -> float:
        added = 3.0 * (len(member.dots) - 1) * member.problem.m * member.problem.n * member.problem.batch
        return bare(member.dots) + added * size / bandwidth

    def beside(member: Member) -> float:
        moved = 2.0 * sum(member.copied) * size / bandwidth  # read and written
        return member.arrays * costs.array + len(member.copied) * costs.copy + moved

    rounds = (tuple(member.problem for member in members),)
    alone_seconds = tuple(alone(member) for member in members)
    kind = kind_of(dtype, precision, device)
    best = fastest_split(rounds, alone_seconds, [beside(x) for x in members], launch, kind, device, planner)
    if sum(len(member.dots) for member, out in zip(members, best.alone, strict=True) if out) > most_dots:
        none = (False,) * len(members)
        best = Split(none, best.members, best.batched_seconds, best.batched_seconds, best.dots_seconds)
    other, is_alternative = best.dots_seconds, False
    if alternative is not None:
        copied = alternative.elements * max(costs.element, 2.0 * size / bandwidth)
        copied += alternative.copies * costs.copy + alternative.blocks * costs.block
        fused, count = bare(alternative.dots) + copied, sum(len(member.dots) for member in members)
        if fused < other or count > most_dots:
            other, is_alternative = fused, True
    elif sum(len(member.dots) for member in members) > most_dots:
        other = math.inf
    # Members that leave the batch take as long as in a program of dots.
    left = 0.0 if is_alternative else sum(x for x, out in zip(alone_seconds, best.alone, strict=True) if out)
    least_gain = costs.least_gain
    if alternative is not None and is_alternative:
        least_gain += costs.fused_gain + (costs.signed_gain if alternative.signed else 0.0)
    gains = other - left >= costs.clear_gain * (best.seconds - left) and other - best.seconds >= least_gain
    if gains and (elements * size > costs.small_bytes or other == math.inf):
        return ChosenSplit(**vars(best))
    none = (True,) * len(members)
    return ChosenSplit(none, alone_seconds, other, best.batched_seconds, best.dots_seconds, is_alternative)


def fastest_split(
    rounds: tuple[tuple[Problem, ...], ...],
    alone_seconds: Sequence[float],
    beside: Sequence[float],
    launch: float,
    kind: str,
    device: DeviceSpec,
    planner: str | Planner,
) -> Split:
    """The split, given the seconds of each member outside of the batch, and the seconds beside those of the plan: of
    each member in a batch, and of each batch (`launch`). kind: the arithmetic of the batch."""
    members = len(alone_seconds)
    dots_seconds = sum(alone_seconds)

    def batch_seconds(kept: Sequence[int]) -> float:
        if not kept:
            return 0.0
        return sum(beside[i] for i in kept) + sum(
            # Without tuned plans, as the result is cached and must not depend on a file, and as predictions are
            # compared.
            launch + plan_problems([problems[i] for i in kept], kind, device, planner, tuned=False).predicted_seconds
            for problems in rounds
        )

    products = [sum(float(r[i].m) * r[i].n * r[i].k * r[i].batch for r in rounds) for i in range(members)]
    size_class = [math.floor(math.log(max(count, 1.0), 4)) for count in products]
    batched_seconds = batch_seconds(range(members))

    def members_seconds(alone: Sequence[bool], batch: float) -> tuple[float, ...]:
        kept = sum(count for count, out in zip(products, alone, strict=True) if not out)
        each = zip(alone_seconds, products, alone, strict=True)
        return tuple(cost if out else batch * count / max(kept, 1.0) for cost, count, out in each)

    none = (False,) * members
    best = Split(none, members_seconds(none, batched_seconds), batched_seconds, batched_seconds, dots_seconds)
    for limit in sorted(set(size_class), reverse=True):
        alone = tuple(member_class >= limit for member_class in size_class)
        seconds = sum(cost for cost, out in zip(alone_seconds, alone, strict=True) if out)
        if seconds >= best.seconds:
            break  # lower limits would only remove more members
        in_batch = batch_seconds([i for i, out in enumerate(alone) if not out])
        seconds += in_batch
        if seconds < best.seconds:
            best = Split(alone, members_seconds(alone, in_batch), seconds, batched_seconds, dots_seconds)
    return best
