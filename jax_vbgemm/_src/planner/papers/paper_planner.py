"""PaperPlanner: a planner with a paper's tile shapes on ordinary units, and with the same shapes on tensor cores."""

from typing import ClassVar

from jax_vbgemm._src.planner.plan.draft import DraftPlanner
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey


class PaperPlanner(DraftPlanner):
    """`tile_sets` are sets of the paper's tiles, each from the smallest on in the planner's order; all tiles of a plan
    come from one set. `tensor_sets` are the shapes of these sets that are built for tensor cores.

    `tensor`: whether a plan takes `tensor_sets`. None: for the arithmetics that belong on tensor cores
    (`Catalogue.on_tensor_cores`), which are float32 at JAX's default precision and 16-bit floats; float32 at "highest"
    and float64 take the paper's tiles. False gives the kernels of the papers, which are all in float32.
    """

    name: ClassVar[str]
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]]
    tensor_sets: ClassVar[tuple[tuple[TileKey, ...], ...]]

    tensor: bool | None

    def sets_for(self, catalogue: Catalogue) -> tuple[tuple[TileKey, ...], ...]:
        """The sets of tiles to choose from; `Catalogue.resolve` replaces tiles that aren't built.

        Raises ValueError if `tensor` is True and no tile of `tensor_sets` is built for the arithmetic.
        """
        on_tensor_cores = catalogue.on_tensor_cores if self.tensor is None else self.tensor
        if not on_tensor_cores:
            return self.ordinary_sets(catalogue)
        built = {tile.key for tile in catalogue}
        if all(built.isdisjoint(tiles) for tiles in self.tensor_sets):
            asked = ", ".join(dict.fromkeys(name for tiles in self.tensor_sets for name, _ in tiles))
            raise ValueError(
                f"{type(self).__name__}: tensor = {self.tensor}: none of the tiles {asked} is built for "
                f"{catalogue.kind} on this device; tensor=None takes ordinary tiles there"
            )
        return self.tensor_sets

    def ordinary_sets(self, catalogue: Catalogue) -> tuple[tuple[TileKey, ...], ...]:
        """The `tile_sets` that have at least one tile built for the arithmetic."""
        built = {tile.key for tile in catalogue}
        return tuple(tiles for tiles in self.tile_sets if not built.isdisjoint(tiles))
