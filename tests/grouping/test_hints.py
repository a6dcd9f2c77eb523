"""`explain`: a summary by reason, and the functions for products that `group` cannot take."""

import jax
import jax.numpy as jnp
import pytest

import jax_vbgemm as vb

X, EXPERTS, ROUTER = jnp.ones((6, 8)), jnp.ones((4, 8, 8)), jnp.ones((8, 4))


def explained(capsys, function, *args):
    jax.make_jaxpr(vb.group(function, explain=True))(*args)
    return capsys.readouterr().out


def routed(x):
    probabilities, chosen = jax.lax.top_k(jax.nn.softmax(x @ ROUTER), 2)
    return lambda expert: jnp.where(chosen == expert, probabilities, 0).sum(-1)[:, None]


def one_by_one(x, experts):
    of = routed(x)
    return sum(of(i) * jax.nn.silu(x @ experts[i]) for i in range(4))


def by_scan(x, experts):
    of = routed(x)
    step = lambda y, each: (y + of(each[0]) * jax.nn.silu(x @ each[1]), None)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros_like(x), (jnp.arange(4, dtype=jnp.int32), experts))[0]


def by_index(x, experts):
    of = routed(x)
    return jax.lax.fori_loop(0, 4, lambda i, y: y + of(i) * jax.nn.silu(x @ experts[i]), jnp.zeros_like(x))


@pytest.mark.parametrize(
    ("function", "count"), [(one_by_one, "4 products"), (by_scan, "1 product"), (by_index, "1 product")]
)
def test_masked_experts_are_named(capsys, function, count):
    text = explained(capsys, function, X, EXPERTS)
    assert (
        f"\n  {count} of what looks like masked experts, each on all rows: use jax_vbgemm.moe.route and moe.expert_mlp"
        in text
    )


def test_ragged_dot_is_named_in_programs_with_other_products(capsys):
    def function(x, experts):
        y = jax.lax.scan(
            lambda y, _: (jax.jit(jax.lax.ragged_dot)(y, experts, jnp.array([1, 2, 2, 1])) @ ROUTER @ ROUTER.T, None),
            x,
            length=2,
        )[0]
        return jax.lax.ragged_dot(y, experts, jnp.array([1, 2, 2, 1]))

    assert "\n  2 products of lax.ragged_dot: use jax_vbgemm.ragged_dot\n" in explained(capsys, function, X, EXPERTS)


def test_muon_of_optax_is_named(capsys):
    muon = pytest.importorskip("optax.contrib").muon(0.1)
    gradients = {"a": jnp.ones((6, 8)), "b": jnp.ones((9, 7)), "bias": jnp.ones(3)}
    with jax.numpy_dtype_promotion("standard"):
        text = explained(capsys, lambda g: muon.update(g, muon.init(g), g)[0], gradients)
    assert "Newton and Schulz, as in optax.contrib.muon: use jax_vbgemm.optax.muon" in text


def test_ordinary_programs_get_no_hints(capsys):
    def attention(x, w):  # slices of a computed array, a gram matrix and a choice
        q, k, v = jnp.split(x @ w, 3, axis=1)
        return jax.lax.top_k(jax.nn.softmax(q @ k.T) @ v, 2), x @ x.T @ x

    assert "use jax_vbgemm" not in explained(capsys, attention, X, jnp.ones((8, 12)))


def test_the_summary_counts_each_reason_first(capsys):
    def function(x):
        return x @ x.T, [x[i : i + 1].T @ x[:1] for i in range(3)]

    lines = explained(capsys, function, X).split("\n")
    assert lines[0] == "group(function): 0 products in 0 calls, 4 dots"
    assert lines[1] == "  3 dots: an outer product, which XLA fuses with what follows"
    assert lines[2] == "  1 dot: it is alone on its level"


def test_powers_of_a_matrix_are_no_iteration_of_newton_and_schulz(capsys):
    assert "Newton" not in explained(capsys, lambda a: (a @ a) @ (a @ a), EXPERTS[0])
    assert "Newton" in explained(capsys, lambda a: (g := a @ a.T) @ g, EXPERTS[0])
