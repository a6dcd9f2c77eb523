"""The spec of a live device: the table's entry for exactly this board, or else one from the driver's report."""

import re
from dataclasses import dataclass, replace

from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tables.device_table import architectures, entries, platform_of, spec_of

_CLOCK = 1.5e9  # assumed: drivers report none
_UNITS = 100  # assumed where even their number is not reported
# Bytes per clock and unit: of the shared memory of all these architectures, and roughly of the A100's L2 cache.
_SHARED_BYTES, _CACHE_BYTES = 128, 48
_PRODUCT_CLOCKS = {"cuda": 4, "rocm": 8}  # clocks from a multiply-add to one that needs its result


@dataclass(frozen=True)
class Reported:
    """A driver's report of a device; None for a figure that it does not report.

    device_kind: its name ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "cpu"). units: multiprocessors, compute units
    or cores. compute_capability: "9.0" of NVIDIA, "gfx942" of AMD. shared_block_bytes: maximum of one block.
    """

    device_kind: str
    platform: str
    units: int | None = None
    compute_capability: str | None = None
    shared_block_bytes: int | None = None

    @property
    def architecture(self) -> str | None:
        """The name that architectures.toml would have for it."""
        text = self.compute_capability or ""
        if self.platform == "cuda" and re.fullmatch(r"\d+\.\d+", text):
            return "sm_" + text.replace(".", "")
        found = re.search(r"gfx[0-9a-f]+", text or self.device_kind)
        return found[0] if found and self.platform == "rocm" else None


def match_device(reported: Reported) -> DeviceSpec:
    """The entry that lists the device's name among its boards, if the compute capability agrees.

    Otherwise a spec from the driver's report, whose note says so.

    A MIG instance is the whole GPU with fewer units. Raises ValueError for a platform without kernels.
    """
    if reported.platform not in ("cpu", "cuda", "rocm"):
        raise ValueError(f"device: there are no kernels for {reported.device_kind!r}")
    whole = re.sub(r" MIG .*", "", reported.device_kind)
    for entry in entries().values():
        board = entry.boards.get(whole)
        if board is not None and reported.architecture in (None, entry.architecture):
            return board if reported.units is None else board.with_units(reported.units)
    return _as_reported(reported)


def _as_reported(reported: Reported) -> DeviceSpec:
    """The spec of a GPU that is not in the table."""
    known = [name for name in architectures() if platform_of(name) == reported.platform]
    usable = [name for name in known if "unlisted" in architectures()[name]]
    asked = reported.architecture
    architecture = asked if asked in usable else _nearest(asked, usable)
    substitution = "" if asked == architecture else f", taken for {architecture}"
    assumed = architectures()[architecture]["unlisted"]
    units = reported.units or _UNITS
    clocks = units * _CLOCK
    rates = {kind: flop * clocks for kind, flop in assumed["flop_per_clock"].items()}
    tensor_rates = {kind: flop * clocks for kind, flop in assumed["tensor_flop_per_clock"].items()}
    hardware = {
        "units": units,
        "bandwidth": units * assumed["bandwidth"],
        "cache_bandwidth": _CACHE_BYTES * clocks,
        "shared_bandwidth": _SHARED_BYTES * clocks,
        "product_latency": _PRODUCT_CLOCKS[reported.platform] / _CLOCK,
        "peak_rates": rates,
        "tensor_rates": tensor_rates,
    }
    spec = spec_of(reported.device_kind, architecture, {"hardware": hardware}, None)
    counted = f"{units} units" if reported.units else f"{units} units assumed"
    note = (
        f"{reported.device_kind} is not in the device table: planned as its driver reports it ({counted}, "
        f"{asked or 'no compute capability'}{substitution}); its clock and memory are assumed, nothing is measured"
    )
    return replace(spec, note=note, shared_block_bytes=reported.shared_block_bytes or spec.shared_block_bytes)


def _nearest(asked: str | None, usable: list[str]) -> str:
    """The architecture whose resources are used: the newest one that is not newer than the device and whose code or
    PTX runs on it, or the oldest one if all are newer."""

    def number(name: str) -> int:
        return int(name.removeprefix("sm_")) if name.startswith("sm_") else 0

    older = [name for name in usable if asked is not None and number(name) <= number(asked)]
    return max(older, key=number, default=usable[0]) if usable[0].startswith("sm_") else usable[0]
