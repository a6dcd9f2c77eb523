"""Planners: from static problem sizes and a device description to a Plan. Pure NumPy, no jax."""

from jax_vbgemm.planner.auto import Auto
from jax_vbgemm.planner.catalogue import Catalogue, Replacement, TileShape, catalogue_for, kind_of
from jax_vbgemm.planner.coordinated import Coordinated
from jax_vbgemm.planner.device import DEVICES, DeviceSpec, device_spec, match_device
from jax_vbgemm.planner.entry import PLANNERS, Planner, plan_problems, resolve_planner
from jax_vbgemm.planner.launches import Launch
from jax_vbgemm.planner.load_balanced import LoadBalanced
from jax_vbgemm.planner.plan import Plan, Tile
from jax_vbgemm.planner.runs import Runs
from jax_vbgemm.planner.sort_split import SortSplit
from jax_vbgemm.planner.tall_skinny import TallSkinny
from jax_vbgemm.planner.uniform import Uniform

__all__ = [
    "DEVICES",
    "PLANNERS",
    "Auto",
    "Catalogue",
    "Coordinated",
    "DeviceSpec",
    "Launch",
    "LoadBalanced",
    "Plan",
    "Planner",
    "Replacement",
    "Runs",
    "SortSplit",
    "TallSkinny",
    "Tile",
    "TileShape",
    "Uniform",
    "catalogue_for",
    "device_spec",
    "kind_of",
    "match_device",
    "plan_problems",
    "resolve_planner",
]
