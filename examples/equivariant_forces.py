"""An equivariant network that learns the forces in clusters of argon and krypton, beside the same with e3nn's layers.

    pip install ".[examples]"
    python examples/equivariant_forces.py

Energies and forces come from the Lennard-Jones potentials of the two noble gases, mixed by the rules of Lorentz and
Berthelot. The network is one of NequIP's kind, written with e3nn-jax: features are scalars, vectors and tensors, edges
carry spherical harmonics, and the linear maps between features choose their weights by the species of the atom. Forces
are gradients of its energy, and it is trained on both, so that each step takes gradients of gradients. The linear
layers are `jax_vbgemm.irreps.flax.Linear`, in place of `e3nn_jax.flax.Linear` with the same parameters.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jax_vbgemm.irreps.flax import Linear

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SIGMA = np.array([3.405, 3.65])  # of Ar and Kr, in Angstrom
EPSILON = np.array([0.01032, 0.01410])  # in eV
SPACING, JITTER, CUTOFF = 3.9, 0.25, 9.0  # in Angstrom
ATOMS = 8

Clusters = dict[str, jax.Array]


def lennard_jones(species: jax.Array, positions: jax.Array) -> jax.Array:
    """The energy of one cluster in eV."""
    first, second = np.triu_indices(ATOMS, 1)
    sigma = (jnp.asarray(SIGMA)[species[first]] + jnp.asarray(SIGMA)[species[second]]) / 2
    epsilon = jnp.sqrt(jnp.asarray(EPSILON)[species[first]] * jnp.asarray(EPSILON)[species[second]])
    square = jnp.sum((positions[first] - positions[second]) ** 2, axis=-1)
    sixth = (sigma**2 / square) ** 3
    return jnp.sum(4 * epsilon * (sixth**2 - sixth))


def clusters(count: int, seed: int) -> Clusters:
    """Cubes of eight atoms, shaken, with their energies (less the mean) and forces."""
    rng = np.random.default_rng(seed)
    cube = SPACING * np.stack(np.meshgrid(*[[0, 1]] * 3), axis=-1).reshape(ATOMS, 3)
    positions = jnp.asarray(cube + JITTER * rng.standard_normal((count, ATOMS, 3)), jnp.float32)
    species = jnp.asarray(rng.integers(0, 2, (count, ATOMS)), jnp.int32)
    energies, slopes = jax.vmap(jax.value_and_grad(lennard_jones, 1))(species, positions)
    return {"species": species, "positions": positions, "energy": energies, "forces": -slopes}


class Network(nn.Module):
    """The energy of each cluster; `linear` is the class of the layers."""

    linear: Any
    channels: int
    layers: int

    @nn.compact
    def __call__(self, species: jax.Array, positions: jax.Array) -> jax.Array:
        c = self.channels
        irreps = e3nn.Irreps(f"{c}x0e+{c}x1o+{c}x2e")
        receiver, sender = np.nonzero(~np.eye(ATOMS, dtype=bool))  # all pairs, one receiver after the other
        edges = positions[:, receiver] - positions[:, sender]
        lengths = jnp.sqrt(jnp.sum(edges**2, axis=-1))
        harmonics = e3nn.spherical_harmonics("0e+1o+2e", e3nn.IrrepsArray("1o", edges), normalize=True)
        radial = e3nn.bessel(lengths, 8, CUTOFF) * e3nn.poly_envelope(4, 2)(lengths / CUTOFF)[..., None]

        features = e3nn.IrrepsArray(f"{c}x0e", nn.Embed(2, c)(species))
        for _ in range(self.layers):
            sent = self.linear(features.irreps)(features)[:, sender]
            messages = e3nn.tensor_product(sent, harmonics, filter_ir_out=["0e", "1o", "2e"])
            hidden = nn.silu(nn.Dense(32)(radial))
            messages = messages * nn.Dense(messages.irreps.num_irreps)(hidden)
            array = messages.array.reshape(len(positions), ATOMS, ATOMS - 1, -1).sum(axis=2)
            gathered = e3nn.IrrepsArray(messages.irreps, array)
            gated = self.linear(irreps + e3nn.Irreps(f"{2 * c}x0e"), num_indexed_weights=2)(species, gathered)
            features = e3nn.gate(gated)
        return self.linear("0e", force_irreps_out=True)(features).array.sum(axis=(1, 2)) / 10


def loss(network: Network, parameters: Any, batch: Clusters) -> tuple[jax.Array, jax.Array]:
    """Of energies and forces, in units of 10 meV and 10 meV per Angstrom; and the mean square error of forces."""

    def energies(positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        found: Any = network.apply(parameters, batch["species"], positions)
        return found.sum(), found

    slopes, found = jax.grad(energies, has_aux=True)(batch["positions"])
    of_forces = jnp.mean((-slopes - batch["forces"]) ** 2)
    of_energies = jnp.mean((found - found.mean() - batch["energy"] + batch["energy"].mean()) ** 2) / ATOMS
    return 1e4 * (of_forces + of_energies), of_forces


def train(network: Network, data: Clusters, test: Clusters, steps: int, batch: int) -> tuple[list[float], float, float]:
    """The loss of each step, the error of the forces in `test`, and the seconds of a step."""
    parameters = network.init(jax.random.key(0), data["species"][:1], data["positions"][:1])
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, steps))
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, batch: Clusters) -> tuple[Any, Any, jax.Array]:
        (value, _), gradient = jax.value_and_grad(partial(loss, network), has_aux=True)(parameters, batch)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, updates), state, value

    rng, losses, seconds = np.random.default_rng(0), [], []
    for _ in track(range(steps), description=network.linear.__module__):
        chosen = rng.choice(len(data["energy"]), batch, replace=False)
        some = {name: x[chosen] for name, x in data.items()}
        start = time.perf_counter()
        parameters, state, value = step(parameters, state, some)
        losses.append(float(value))
        seconds.append(time.perf_counter() - start)
    _, error = jax.jit(partial(loss, network))(parameters, test)
    return losses, float(jnp.sqrt(error)), float(np.median(seconds))


def main(
    steps: Annotated[int, typer.Option(help="of training")] = 300,
    channels: Annotated[int, typer.Option(help="of each irrep")] = 16,
    layers: Annotated[int, typer.Option(help="of messages")] = 2,
    batch: Annotated[int, typer.Option(help="clusters a step")] = 8,
    examples: Annotated[int, typer.Option(help="clusters to learn from")] = 256,
    output: Annotated[Path, typer.Option(help="the picture")] = Path("equivariant_forces.png"),
) -> None:
    data, test = clusters(examples, 0), clusters(64, 1)
    typical = float(jnp.sqrt(jnp.mean(test["forces"] ** 2)))
    console = Console()
    table = Table(title=f"{steps} steps, {jax.devices()[0].device_kind}")
    for column in ("linear layers", "first loss", "last loss", "error of forces, meV/Angstrom", "ms a step"):
        table.add_column(column, justify="left" if column == "linear layers" else "right")
    curves = {}
    for name, layer in {"jax_vbgemm": Linear, "e3nn_jax": e3nn.flax.Linear}.items():
        losses, error, seconds = train(Network(layer, channels, layers), data, test, steps, batch)
        curves[name] = losses
        table.add_row(name, f"{losses[0]:.3f}", f"{losses[-1]:.3f}", f"{1e3 * error:.2f}", f"{1e3 * seconds:.1f}")
    console.print(table)
    console.print(f"forces of the test clusters: {1e3 * typical:.1f} meV/Angstrom")
    first = [losses[: min(5, steps)] for losses in curves.values()]
    difference = float(np.max(np.abs(np.subtract(*first)) / first[1]))
    console.print(f"largest relative difference of the first losses: {difference:.1e}")

    figure, axes = plt.subplots(figsize=(6, 3.5))
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.semilogy(losses, style, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.tight_layout()
    figure.savefig(output)


if __name__ == "__main__":
    typer.run(main)
