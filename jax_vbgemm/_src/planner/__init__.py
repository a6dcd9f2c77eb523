"""Planners: from static problem sizes and a device description to a Plan. Pure NumPy, no jax."""

from jax_vbgemm._src.planner.auto import Auto
from jax_vbgemm._src.planner.entry import PLANNERS, Planner, plan_problems, resolve_planner
from jax_vbgemm._src.planner.papers.coordinated import Coordinated
from jax_vbgemm._src.planner.papers.load_balanced import LoadBalanced
from jax_vbgemm._src.planner.papers.sort_split import SortSplit
from jax_vbgemm._src.planner.papers.tall_skinny import TallSkinny
from jax_vbgemm._src.planner.papers.uniform import Uniform
from jax_vbgemm._src.planner.plan.plan import Plan, Tile
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, Replacement, TileShape, catalogue_for, kind_of
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tables.device_table import DEVICES, device_spec
from jax_vbgemm._src.planner.tables.live import Reported, match_device
from jax_vbgemm._src.planner.tiles.launches import Launch
from jax_vbgemm._src.planner.tiles.runs import Runs

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
    "Reported",
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
