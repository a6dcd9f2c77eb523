"""Stand-ins for `whole_programs.py`: programs as users write them, of which no package is needed.

`Case` is the form in which these and the public programs (`whole_programs_real.py`) are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_vbgemm as vb
from jax_vbgemm import blocksparse, irreps


class Case(NamedTuple):
    """A function as its owners wrote it, its arguments, and the same function with this package; `variants` beside
    `group`, which every program has."""

    step: str
    before: Callable[..., Any]
    args: tuple[Any, ...]
    variants: Mapping[str, Callable[..., Any]]


def of_size(size: str, small: Any, cpu: Any, gpu: Any) -> Any:
    return {"small": small, "cpu": cpu, "gpu": gpu}[size]


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    """Random numbers, divided by the square root of the second-last dimension as a weight's."""
    scale = shape[-2] ** -0.5 if len(shape) > 1 else 1.0
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * scale, dtype)


def with_gradient(loss: Callable[..., Any], args: tuple[Any, ...], **variants: Callable[..., Any]) -> list[Case]:
    """The loss and its gradient by the first argument, before and in each variant."""
    return [
        Case("forward", loss, args, variants),
        Case("gradient", jax.grad(loss), args, {name: jax.grad(function) for name, function in variants.items()}),
    ]


def messages(size: str) -> list[Case]:
    """Features of e3nn's layout (nodes, channels, 2l + 1); the gradient is that of training on forces."""
    nodes, edges, layers = of_size(size, (6, 24, 1), (64, 1024, 2), (512, 16384, 4))
    channels = of_size(size, (4, 3), (64, 32, 16), (128, 64, 32, 32))
    names = "+".join(f"{n}x{degree}{'eo'[degree % 2]}" for degree, n in enumerate(channels))
    linear = irreps.LinearMap(names, names)
    rng = np.random.default_rng(0)
    senders, receivers = (jnp.asarray(rng.integers(0, nodes, edges)) for _ in range(2))
    weights = [[[normal(7 * i + d, n, n) for d, n in enumerate(channels)] for i in range(3)] for _ in range(layers)]
    positions = normal(99, nodes, 3)
    embedding = [normal(50 + degree, nodes, n, 2 * degree + 1) for degree, n in enumerate(channels)]

    def plain(weights: Any, x: Any) -> Any:
        return [
            jnp.einsum("zui,uv->zvi", of_irrep, w) / w.shape[0] ** 0.5 for of_irrep, w in zip(x, weights, strict=True)
        ]

    def energy(weights: Any, positions: Any, embedding: Any, linear: Callable[..., Any]) -> jax.Array:
        x = embedding
        for first, middle, last in weights:
            distance = jnp.sum((positions[senders] - positions[receivers] + 0.1) ** 2, axis=1)[:, None, None]
            message = [of_irrep[senders] * jnp.exp(-distance) for of_irrep in linear(first, x)]
            message = [of_irrep * jax.nn.silu(message[0][:, :1]) for of_irrep in linear(middle, message)]
            received = [jax.ops.segment_sum(of_irrep, receivers, nodes) for of_irrep in message]
            x = [a + b for a, b in zip(x, linear(last, received), strict=True)]
        return sum(jnp.sum(of_irrep**2) for of_irrep in x)  # all irreps: XLA removes what the energy doesn't need

    def force_loss(weights: Any, positions: Any, embedding: Any, linear: Callable[..., Any]) -> jax.Array:
        return jnp.mean(jax.grad(energy, 1)(weights, positions, embedding, linear) ** 2)

    args = weights, positions, embedding
    forces = jax.grad(energy, 1)
    return [
        Case("forces", partial(forces, linear=plain), args, {"LinearMap": partial(forces, linear=linear)}),
        Case("training", jax.grad(partial(force_loss, linear=plain)), args,
             {"LinearMap": jax.grad(partial(force_loss, linear=linear))}),
    ]  # fmt: skip


def species(size: str) -> list[Case]:
    """ANI's networks: as many atoms of an element as there are, a network of its own for each element."""
    scale = of_size(size, 1, 8, 100)
    counts = [scale * n for n in (16, 6, 4, 3, 1)]
    widths = [(96, 160, 128), (96, 144, 112), (96, 128, 112), (96, 128, 96), (96, 96, 64)]
    if size == "small":
        widths = [(5, 4, 3), (5, 3, 3), (5, 3, 2), (5, 2, 2), (5, 2, 1)]
    networks = [
        [normal(10 * e + i, m, n) for i, (m, n) in enumerate(zip(shape, (*shape[1:], 1), strict=True))]
        for e, shape in enumerate(widths)
    ]
    features = [normal(90 + e, n, shape[0]) for e, (n, shape) in enumerate(zip(counts, widths, strict=True))]

    def loss(networks: Any, features: Any) -> jax.Array:
        energies = []
        for layers, x in zip(networks, features, strict=True):
            for w in layers[:-1]:
                x = jax.nn.silu(x @ w)
            energies.append(jnp.sum(x @ layers[-1]))
        return sum(energies) ** 2

    def batched(networks: Any, features: Any) -> jax.Array:
        return sum(map(jnp.sum, vb.networks.apply(_without_biases(networks), features, "silu"))) ** 2

    return with_gradient(loss, (networks, features), networks=batched)


def blocks(size: str) -> list[Case]:
    """A matrix product state with charges from -q to q, and its norm from left to right."""
    sites, largest, width = of_size(size, (3, 1, 2), (8, 3, 8), (16, 4, 32))
    charges = range(-largest, largest + 1)
    sizes = {q: max(width // (1 + abs(q)), 1) for q in charges}
    tensors = [
        {(q, s, q + s): normal(100 * i + 7 * (q - min(charges)) + s + 1, sizes[q], 1, sizes[q + s]) / 2
         for q in charges for s in (-1, 0, 1) if q + s in sizes}
        for i in range(sites)
    ]  # fmt: skip

    def by_block(a: Any, b: Any, axes: Any) -> Any:
        """The contraction as a loop over pairs of blocks."""
        found: dict[Any, Any] = {}
        free = [
            [axis for axis in range(len(next(iter(x)))) if axis not in of_x]
            for x, of_x in zip((a, b), axes, strict=True)
        ]
        for s, x in a.items():
            for t, y in b.items():
                if [s[axis] for axis in axes[0]] == [t[axis] for axis in axes[1]]:
                    key = tuple(s[axis] for axis in free[0]) + tuple(t[axis] for axis in free[1])
                    product = jnp.tensordot(x, y, axes)
                    found[key] = found[key] + product if key in found else product
        return found

    def norm(tensors: Any, tensordot: Callable[..., Any]) -> jax.Array:
        environment = {(q, q): jnp.eye(n, dtype=jnp.float32) for q, n in sizes.items()}
        for tensor in tensors:
            environment = tensordot(tensordot(environment, tensor, ([0], [0])), tensor, ([0, 1], [0, 1]))
        return sum(map(jnp.trace, environment.values()))

    way = {"blocksparse": partial(norm, tensordot=blocksparse.tensordot)}
    return with_gradient(partial(norm, tensordot=by_block), (tensors,), **way)


def experts(size: str) -> list[Case]:
    """All experts on all tokens, each masked by its probabilities, as models do that have no ragged product."""
    tokens, width, hidden, count, k = of_size(size, (6, 4, 6, 3, 2), (64, 128, 96, 16, 4), (1024, 2048, 768, 64, 8))
    dtype = of_size(size, jnp.float32, jnp.float32, jnp.bfloat16)
    router = normal(0, width, count)
    gate, up = (normal(i, count, width, hidden, dtype=dtype) for i in (1, 2))
    down, x = normal(3, count, hidden, width, dtype=dtype), normal(4, tokens, width, dtype=dtype)

    def loss(weights: Any, router: Any, x: Any) -> jax.Array:
        gate, up, down = weights
        top, chosen = jax.lax.top_k(x.astype(jnp.float32) @ router, k)
        probabilities, y = jax.nn.softmax(top), jnp.zeros(x.shape, x.dtype)
        for expert in range(count):
            part = jnp.sum(jnp.where(chosen == expert, probabilities, 0.0), axis=-1).astype(x.dtype)
            y += part[:, None] * ((jax.nn.silu(x @ gate[expert]) * (x @ up[expert])) @ down[expert])
        return jnp.sum(y.astype(jnp.float32) ** 2)

    def ragged(weights: Any, router: Any, x: Any) -> jax.Array:
        gate, up, down = weights
        routing = vb.moe.route(x.astype(jnp.float32) @ router, k)
        rows = vb.moe.dispatch(x, routing)
        inner = jax.nn.silu(vb.ragged_dot(rows, gate, routing.group_sizes)) * vb.ragged_dot(
            rows, up, routing.group_sizes
        )
        y = vb.moe.combine(vb.ragged_dot(inner, down, routing.group_sizes), routing)
        return jnp.sum(y.astype(jnp.float32) ** 2)

    return with_gradient(loss, ((gate, up, down), router, x), ragged_dot=ragged)


def lora(size: str) -> list[Case]:
    """Frozen dense layers with two trained factors of low rank beside each of them."""
    layers, width, rank, rows = of_size(size, (2, 8, 2, 3), (28, 128, 8, 32), (24, 1024, 16, 512))
    dtype = of_size(size, jnp.float32, jnp.float32, jnp.bfloat16)
    frozen = [normal(i, width, width, dtype=dtype) for i in range(layers)]
    trained = [
        (normal(50 + i, width, rank, dtype=dtype), normal(80 + i, rank, width, dtype=dtype)) for i in range(layers)
    ]

    def loss(trained: Any, frozen: Any, x: Any) -> jax.Array:
        for w, (a, b) in zip(frozen, trained, strict=True):
            x = jnp.tanh(x @ w + (x @ a) @ b)
        return jnp.sum(x.astype(jnp.float32) ** 2)

    return with_gradient(loss, (trained, frozen, normal(99, rows, width, dtype=dtype)))


def mlp(size: str) -> list[Case]:
    """Dense layers of one width: nothing but the end of the program waits for the gradients of their weights."""
    layers, width, rows = of_size(size, (3, 8, 4), (12, 32, 16), (24, 256, 128))
    weights = [normal(i, width, width) for i in range(layers)]
    return with_gradient(_energy_of_network, (weights, normal(99, rows, width)))


def ensemble(size: str) -> list[Case]:
    """Members of different width and depth on the same rows."""
    members, inputs, rows = of_size(size, (3, 4, 5), (8, 16, 16), (32, 64, 64))
    widths = [[inputs, *[inputs + 8 * (i % 5)] * (1 + i % 4), 1 + i % 3] for i in range(members)]
    networks = [[normal(10 * i + j, m, n) for j, (m, n) in enumerate(pairwise(each))] for i, each in enumerate(widths)]

    def loss(networks: Any, x: Any) -> jax.Array:
        return sum((_energy_of_network(weights, x) for weights in networks), jnp.float32(0))

    def batched(networks: Any, x: Any) -> jax.Array:
        return sum(jnp.sum(y**2) for y in vb.networks.apply(_without_biases(networks), x, "tanh"))

    return with_gradient(loss, (networks, normal(99, rows, inputs)), networks=batched)


def heads(size: str) -> list[Case]:
    """Networks with a hidden layer and different numbers of outputs, on the features of one dense layer."""
    count, inputs, hidden, rows = of_size(size, (3, 4, 3, 5), (12, 64, 32, 64), (48, 256, 128, 256))
    trunk = normal(0, inputs, inputs)
    networks = [
        [(normal(3 * i + 1, inputs, hidden), normal(3 * i + 2, hidden)),
         (normal(3 * i + 3, hidden, 1 + i % 6), normal(3 * i + 4, 1 + i % 6))]
        for i in range(count)
    ]  # fmt: skip

    def loop(networks: Any, x: Any) -> list[jax.Array]:
        return [jax.nn.silu(x @ w + b[None]) @ v + c[None] for (w, b), (v, c) in networks]

    def loss(parameters: Any, x: Any, applied: Callable[..., Any]) -> jax.Array:
        trunk, networks = parameters
        return sum((jnp.mean(y**2) for y in applied(networks, jax.nn.silu(x @ trunk))), jnp.float32(0))

    batched = partial(loss, applied=lambda networks, x: vb.networks.apply(networks, x, "silu"))
    args = (trunk, networks), normal(99, rows, inputs)
    return with_gradient(partial(loss, applied=loop), args, networks=batched)


def types(size: str) -> list[Case]:
    """Networks that a library stacked (`nn.vmap`): all of them on all atoms, of which each keeps its element's."""
    elements, inputs, hidden, atoms = of_size(size, (3, 4, 3, 5), (7, 128, 64, 240), (7, 384, 128, 6000))
    widths = [inputs, hidden, hidden, 1]
    stack = [
        (jnp.stack([normal(10 * i + e, m, n) for e in range(elements)]), normal(90 + i, elements, n))
        for i, (m, n) in enumerate(pairwise(widths))
    ]
    species = jnp.asarray(np.random.default_rng(0).integers(0, elements, atoms))

    def loss(stack: Any, x: Any) -> jax.Array:
        for i, (w, b) in enumerate(stack):
            x = x @ w + b[:, None]
            x = x if i == len(stack) - 1 else jax.nn.silu(x)
        return jnp.sum(jnp.where(species[None, :, None] == jnp.arange(elements)[:, None, None], x, 0.0)) ** 2

    def typed(stack: Any, x: Any) -> jax.Array:
        return jnp.sum(vb.networks.apply_typed([stack], x, "silu", types=species)) ** 2

    return with_gradient(loss, (stack, normal(99, atoms, inputs)), networks=typed)


def _without_biases(networks: Any) -> Any:
    return [[(w, None) for w in weights] for weights in networks]


def _energy_of_network(weights: Any, x: Any) -> jax.Array:
    for w in weights[:-1]:
        x = jnp.tanh(x @ w)
    return jnp.sum((x @ weights[-1]) ** 2)


PROGRAMS: dict[str, Callable[[str], list[Case]]] = {
    each.__name__: each for each in (messages, species, blocks, experts, lora, mlp, ensemble, heads, types)
}
