"""What the planners of three papers share: sets of tiles on ordinary units, and of the same shapes on tensor cores."""

from typing import ClassVar

from jax_vbgemm._src.planner.plan.draft import DraftPlanner
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey


class PaperPlanner(DraftPlanner):
    """`tile_sets` are the papers' own tiles, each in the planner's order, smallest first; all tiles of a plan come from
    one of them. `tensor_sets` are the shapes of these that are built for tensor cores.

    `tensor`: which of both a plan takes. None: tensor cores for the kinds of arithmetic that are theirs
    (`Catalogue.on_tensor_cores`), so that float32 at JAX's default precision and 16-bit floats are multiplied where a
    user of such a GPU expects it; float32 at "highest" and float64 take the papers' tiles. The papers' kernels, all of
    float32, are those of False.
    """

    name: ClassVar[str]
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]]
    tensor_sets: ClassVar[tuple[tuple[TileKey, ...], ...]]

    tensor: bool | None

    def sets_for(self, catalogue: Catalogue) -> tuple[tuple[TileKey, ...], ...]:
        """The sets to choose from. Of tiles that aren't built `Catalogue.resolve` says so."""
        on_tensor_cores = catalogue.on_tensor_cores if self.tensor is None else self.tensor
        return self.tensor_sets if on_tensor_cores else self.tile_sets
