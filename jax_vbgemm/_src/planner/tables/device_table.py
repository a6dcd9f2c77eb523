"""The device table: each folder of devices/ is an entry, its device.toml read into a DeviceSpec.

A device.toml names an architecture of architectures.toml, or as its `base` another device of the same chip, whose
figures it inherits (measured ones only if units and rates are the same: `_check_base`). Besides [hardware] it only has
figures that were measured or taken from papers:

  [costs]   seconds; else those of assumed_costs.toml
  [papers]  thresholds of the papers' planners; else derived from the architecture (`_thresholds`)
  [dots]    measured rates of XLA's dots (rules.DotRates); else the data sheet's rates
  [calls]   what a call costs beside its kernels (rules.CallCosts); else assumed (single_dots.py)
  [collectives]  by jax.lax's name, rules.CollectiveRate; one that is not here was not measured
  [rules]   rules.Rules, [ragged] rules.RaggedRules, [mesh] rules.MeshRules, [cores] rules.CoreRules; else none
  [boards]  by device_kind, the figures of [hardware] in which a board differs

A calibration.csv beside it has the cost model's coefficients of tiles that were measured on the device. Those of other
tiles are of `base`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tables.rules import (
    CallCosts,
    CollectiveRate,
    CoreRules,
    DotRates,
    MeshRules,
    RaggedRules,
    Rules,
)
from jax_vbgemm._src.util.shown import shown

TABLES = Path(__file__).parent
FOLDER = TABLES / "devices"

_OCCUPANCY = (
    "resources", "wave_size", "max_waves", "max_blocks", "max_threads", "simds", "registers", "register_granule",
    "scalar_registers", "shared_bytes", "shared_block_bytes", "shared_granule", "shared_reserved", "vector_bytes",
    "setup_registers",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A device of the table: its spec, its architecture, and the names (device_kind) of the live devices it
    describes."""

    spec: DeviceSpec
    architecture: str
    boards: Mapping[str, DeviceSpec]


@lru_cache(maxsize=1)
def architectures() -> Mapping[str, Mapping[str, Any]]:
    return _read(TABLES / "architectures.toml")


@lru_cache(maxsize=1)
def entries() -> Mapping[str, Entry]:
    """All devices, by name."""
    return {file.parent.name: _entry(file.parent.name) for file in sorted(FOLDER.glob("*/device.toml"))}


def calibration_file(device: str) -> Path:
    """The path of a device's calibration file, which may not exist."""
    return FOLDER / device / "calibration.csv"


def calibration_files(device: str) -> list[Path]:
    """The calibration files of a device, whose rows replace those of the files before: its base's, and its own."""
    base = _read(FOLDER / device / "device.toml").get("base")
    own = calibration_file(device)
    return (calibration_files(base) if base else []) + ([own] if own.exists() else [])


def platform_of(architecture: str) -> Any:
    """JAX's name for the platform whose programs run there."""
    return {"sm": "cuda", "gf": "rocm"}.get(architecture[:2], "cpu")


def spec_of(name: str, architecture: str, tables: Mapping[str, Any], calibration: str | None) -> DeviceSpec:
    """The spec from the tables of a device.toml, completed by defaults.

    Raises ValueError, naming the device, for a figure that is missing or unknown.
    """
    architecture_table = architectures()[architecture]
    platform = platform_of(architecture)
    occupancy: dict[str, Any] = {key: architecture_table.get(key) for key in _OCCUPANCY}
    hardware = _frozen(tables["hardware"])
    costs = _assumed_costs().get(platform, {}) | tables.get("costs", {})
    papers = _thresholds(hardware.get("units", 0), occupancy) | tables.get("papers", {})
    try:
        return DeviceSpec(
            name=name,
            platform=platform,
            calibration=calibration,
            rules=Rules(**tables["rules"]) if "rules" in tables else None,
            ragged_rules=RaggedRules(**_frozen(tables["ragged"])) if "ragged" in tables else None,
            mesh_rules=MeshRules(**tables["mesh"]) if "mesh" in tables else None,
            core_rules=CoreRules(**_frozen(tables["cores"])) if "cores" in tables else None,
            dots=DotRates(**_frozen(tables["dots"])) if "dots" in tables else None,
            calls=CallCosts(**tables["calls"]) if "calls" in tables else None,
            collectives=tuple((key, CollectiveRate(**rate)) for key, rate in tables.get("collectives", {}).items()),
            note=_note(architecture, architecture_table),
            **occupancy,
            **hardware,
            **costs,
            **papers,
        )
    except TypeError as error:
        raise ValueError(f"device {name!r}: {error}") from None


def _note(architecture: str, table: Mapping[str, Any]) -> str:
    """The note for plans for an architecture, from its table."""
    if table.get("built", True):
        return ""
    resources_from = table["resources"]
    if resources_from == architecture:
        return f"no kernels are built for {architecture}: it is described for plans only"
    return (
        f"no kernels are built for {architecture}: planned with the registers and shared memory of {resources_from}'s"
    )


def _entry(name: str) -> Entry:
    tables, calibration = _tables(name)
    spec = spec_of(name, tables["architecture"], tables, calibration)
    boards = {board: replace(spec, **differing) if differing else spec for board, differing in tables["boards"].items()}
    return Entry(spec, tables["architecture"], boards)


def _tables(name: str) -> tuple[dict[str, Any], str | None]:
    """The tables of a device.toml merged with those of its base, and the device whose calibration is used."""
    folder = FOLDER / name
    tables = _read(folder / "device.toml")
    calibration = name if calibration_file(name).exists() else None
    if "base" in tables:
        base = tables.pop("base")
        below, inherited = _tables(base)
        _check_base(name, base, tables.get("hardware", {}), below, inherited)
        below.pop("boards")
        for key, value in tables.items():
            below[key] = below.get(key, {}) | value if isinstance(value, dict) else value
        tables, calibration = below, calibration or inherited
    return tables, calibration


def _check_base(
    name: str, base: str, hardware: Mapping[str, Any], below: Mapping[str, Any], calibration: str | None
) -> None:
    """ValueError if a device would inherit measurements made with other units or rates than its own."""
    other = [
        key
        for key in ("units", "peak_rates", "tensor_rates")
        if hardware.get(key, below["hardware"][key]) != below["hardware"][key]
    ]
    measured = [f"[{table}]" for table in ("dots", "calls", "rules", "ragged", "mesh", "collectives") if table in below]
    measured += ["calibration.csv"] if calibration else []
    if other and measured:
        raise ValueError(
            f"device {name!r}: {', '.join(other)} differ from those of its base {base!r}: what was measured there "
            f"({', '.join(measured)}) does not hold, so name an architecture in place of a base"
        )


def _thresholds(units: int, occupancy: Mapping[str, Any]) -> dict[str, int]:
    """The thresholds of the papers' planners on a device where none were searched for, as Li 2019, section 4.2.3,
    describes.

    Li's threshold is that of the V100, scaled to the device: 40% of the threads that it holds. Zhang's is half of them,
    which is more than one class of tiles can have active; with a lower one, Eq. 4-9 would make the same plans as Eq. 3.
    Wang's factor is the number of SIMDs divided by the waves of a block of 128 threads.
    """
    threads = units * occupancy["max_threads"]
    return {
        "tlp_threshold": round(65536 / (80 * 2048) * threads),
        "theta": 256,
        "load_balanced_threshold": threads // 2,
        "split_factor": max(occupancy["simds"] * occupancy["wave_size"] // 128, 1),
    }


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tuples, and tables of rates as tuples of pairs, so that a spec can be compared and hashed."""

    def frozen(value: Any) -> Any:
        if isinstance(value, dict):
            return tuple(value.items())
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return {key: frozen(value) for key, value in table.items()}


@lru_cache(maxsize=1)
def _assumed_costs() -> Mapping[str, Mapping[str, float]]:
    return _read(TABLES / "assumed_costs.toml")


def _read(file: Path) -> dict[str, Any]:
    with file.open("rb") as binary:
        return tomllib.load(binary)


DEVICES: Mapping[str, DeviceSpec] = {name: entry.spec for name, entry in entries().items()}


def device_spec(device: str | DeviceSpec) -> DeviceSpec:
    """The table's entry of that name, or the spec itself. An unknown name is a ValueError that lists the known ones."""
    if isinstance(device, DeviceSpec):
        return device
    if not isinstance(device, str):
        raise TypeError(f"device: expected a DeviceSpec or a name, but it is {shown(device)}")
    if device.lower() not in DEVICES:
        raise ValueError(f"device: unknown name {device!r}; known are {', '.join(DEVICES)}")
    return DEVICES[device.lower()]
