"""`expert_mlp` with weights as public models store them: pairs, (out, in), interleaved, biases, other gates."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm import moe

TOKENS, EXPERTS, K, D, F, N = 9, 4, 2, 5, 3, 6
LOGITS = oracle.random((TOKENS, EXPERTS), "float64", 5)
ROUTING = jax.jit(moe.route, static_argnums=1)(LOGITS, K)
SHAPES = {
    "x": (TOKENS, D), "gate": (EXPERTS, D, F), "up": (EXPERTS, D, F), "down": (EXPERTS, F, N),
    "gate_bias": (EXPERTS, F), "up_bias": (EXPERTS, F), "down_bias": (EXPERTS, N),
}  # fmt: skip
GIVEN = {name: oracle.random(shape, "float64", i) for i, (name, shape) in enumerate(SHAPES.items())}
GATES = {
    "silu": ({}, lambda g, u: jax.nn.silu(g) * u),
    "gelu": ({"activation": "gelu"}, lambda g, u: jax.nn.gelu(g) * u),
    "sin": ({"activation": jnp.sin}, lambda g, u: jnp.sin(g) * u),
    "gpt-oss": (
        {"gate": moe.clamped_swiglu},
        lambda g, u: (jnp.clip(u, -7, 7) + 1) * jnp.minimum(g, 7) * jax.nn.sigmoid(1.702 * jnp.minimum(g, 7)),
    ),
    "relu^2": ({"gated": False, "activation": lambda h: jnp.maximum(h, 0) ** 2}, lambda g, u: jnp.maximum(g, 0) ** 2),
}


def plain(given, gate, biased):
    """Every token times every expert."""
    bias = given if biased else {name: jnp.zeros(1) for name in ("gate_bias", "up_bias", "down_bias")}
    g, u = (
        jnp.einsum("td,edf->tef", given["x"], given[name]) + bias[f"{name}_bias"].reshape(1, -1, F if biased else 1)
        for name in ("gate", "up")
    )
    y = jnp.einsum("tef,efn->ten", gate(g, u), given["down"]) + bias["down_bias"].reshape(1, -1, N if biased else 1)
    weights = jnp.zeros((TOKENS, EXPERTS)).at[jnp.arange(TOKENS)[:, None], ROUTING.experts].set(ROUTING.probabilities)
    return jnp.einsum("te,ten->tn", weights, y)


def stored(given, layout, transposed, gated):
    """The weights and biases of a model in its layout."""
    swap = (lambda w: w.swapaxes(1, 2)) if transposed else (lambda w: w)
    gate, up = given["gate"], given["up"]
    gate_bias, up_bias = given["gate_bias"], given["up_bias"]
    if not gated:
        return swap(gate), swap(given["down"]), (gate_bias, given["down_bias"])
    if layout == "pair":
        return (swap(gate), swap(up)), swap(given["down"]), ((gate_bias, up_bias), given["down_bias"])
    if layout == "halves":
        both, bias = jnp.concatenate([gate, up], 2), jnp.concatenate([gate_bias, up_bias], 1)
    else:
        both, bias = jnp.stack([gate, up], 3).reshape(EXPERTS, D, 2 * F), jnp.stack([gate_bias, up_bias], 2)
    return swap(both), swap(given["down"]), (bias.reshape(EXPERTS, -1), given["down_bias"])


CASES = [
    ("pair", False, "silu", False), ("pair", True, "gelu", True), ("pair", False, "gpt-oss", True),
    ("halves", True, "silu", True), ("halves", False, "gpt-oss", False), ("interleaved", True, "gpt-oss", True),
    ("interleaved", False, "silu", False), ("pair", True, "sin", False), ("one", True, "relu^2", True),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "transposed", "gate", "biased"), CASES, ids=lambda value: str(value))
def test_values_and_gradients_in_each_layout(layout, transposed, gate, biased):
    options, function = GATES[gate]

    def ours(given):
        weights, down, bias = stored(given, layout, transposed, options.get("gated", True))
        bias = bias if biased else None
        extra = {"interleaved": True} if layout == "interleaved" else {}
        return moe.expert_mlp(
            given["x"], weights, down, ROUTING, transpose_rhs=transposed, bias=bias, **options, **extra
        )

    for a, b in zip(*(jax.tree.leaves(jax.jit(jax.value_and_grad(lambda g, f=f: jnp.sum(jnp.sin(f(g)))))(GIVEN))
                      for f in (ours, lambda g: plain(g, function, biased))), strict=True):  # fmt: skip
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_a_pair_is_not_copied():
    """No array of both weights' size is made."""
    x, gate, up, down = (GIVEN[name].astype("bfloat16") for name in ("x", "gate", "up", "down"))
    text = jax.jit(lambda *a: moe.expert_mlp(a[0], a[1:3], a[3], ROUTING)).lower(x, gate, up, down).as_text()
    assert f"{EXPERTS}x{D}x{2 * F}x" not in text


def test_sums_of_the_gradients_of_a_pair():
    x, gate, up, down = (GIVEN[name] for name in ("x", "gate", "up", "down"))
    refs = (jax.new_ref(jnp.ones_like(gate)), jax.new_ref(jnp.ones_like(up))), jax.new_ref(jnp.ones_like(down))
    loss = lambda w, sums: jnp.sum(jnp.sin(moe.expert_mlp(x, w[:2], w[2], ROUTING, gradients=sums)))  # noqa: E731
    jax.jit(jax.grad(loss))((gate, up, down), refs)
    expected = jax.jit(jax.grad(loss))((gate, up, down), None)
    for ref, gradient in zip((*refs[0], refs[1]), expected, strict=True):
        np.testing.assert_allclose(ref[...], 1 + gradient, rtol=1e-12)


def test_rows_of_no_expert_are_zero_for_every_gate():
    mask = np.arange(TOKENS) % 2 == 0
    routing = jax.jit(lambda logits: moe.route(logits, K, mask=mask))(LOGITS)
    for options in ({"gate": lambda g, u: g / u}, {"activation": lambda h: 1 / h}):
        pair = (GIVEN["gate"], GIVEN["up"])
        y, dx = jax.jit(
            jax.value_and_grad(lambda x, o=options, p=pair: jnp.sum(moe.expert_mlp(x, p, GIVEN["down"], routing, **o)))
        )(GIVEN["x"])
        assert jnp.isfinite(y)
        assert jnp.isfinite(dx).all()
        assert not dx[~mask].any()


X, G, U, W = GIVEN["x"], GIVEN["gate"], GIVEN["up"], GIVEN["down"]
ERRORS = [
    (((G, U, U), W), {}, TypeError, "expert_mlp: gate_up must be a pair"),
    (((G, U[:, :, 1:]), W), {}, ValueError, r"gate_up is .* must be \(experts, d, f\) and down \(experts, f, n\)"),
    (((G[1:], U), W), {}, ValueError, r"expert_mlp: gate_up\[0\] is \(3, 5, 3\) but routing is of 4 experts"),
    ((G, W), {}, ValueError, r"must be \(experts, d, 2 f\)"),
    (((G, U), W), {"transpose_rhs": True}, ValueError, r"must be \(experts, f, d\) and down \(experts, n, f\)"),
    (((G, U), W), {"transpose_rhs": (True, False)}, ValueError, r"\(experts, f, d\) and down \(experts, f, n\)"),
    (((G, U), W), {"transpose_rhs": (True,)}, TypeError, "transpose_rhs must be a pair, of gate_up"),
    (((G, U), W), {"interleaved": True}, ValueError, "interleaved is for one array"),
    (((G, U), W), {"gated": False}, ValueError, "expert_mlp: gated is False"),
    (((G, U), W), {"bias": G}, TypeError, "expert_mlp: bias must be a pair, of gate_up and of down"),
    (((G, U), W), {"bias": (GIVEN["gate_bias"], None)}, TypeError, "gated_dot: bias must be a pair"),
    (((G, U), W), {"gate": lambda g, u: g.sum()}, ValueError, "gated_dot: gate maps float64"),
]


@pytest.mark.parametrize(("weights", "options", "kind", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_argument(weights, options, kind, message):
    with pytest.raises(kind, match=message):
        moe.expert_mlp(X, *weights, ROUTING, **options)


def test_a_pair_in_gated_dot():
    sizes = jnp.array([2, 0, 5, 1])
    both = jnp.concatenate([G, U], 2)
    scale = oracle.random((TOKENS,), "float64", 4)
    ours = moe.gated_dot(X, (G, U), sizes, row_scale=scale)
    np.testing.assert_allclose(ours, moe.gated_dot(X, both, sizes, row_scale=scale), rtol=1e-12, atol=1e-12)
    assert not ours[8:].any()
    with pytest.raises(ValueError, match=r"gated_dot: rhs\[0\] is \(4, 5, 3\) but rhs\[1\] is \(4, 5, 2\)"):
        moe.gated_dot(X, (G, U[:, :, 1:]), sizes)
    assert vb.moe.clamped_swiglu(jnp.array(-1e30), jnp.array(-9.0)) == 0
