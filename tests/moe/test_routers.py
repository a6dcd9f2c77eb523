"""Routers of public models: their scores, choices and losses against plain implementations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm import moe

TOKENS, EXPERTS, K = 13, 12, 3
LOGITS = oracle.random((TOKENS, EXPERTS), "float64", 5)
BIAS = oracle.random((EXPERTS,), "float64", 6)
PLAIN = {
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "sigmoid": lambda x: 1 / (1 + jnp.exp(-x)),
    "sqrtsoftplus": lambda x: jnp.sqrt(jnp.log(1 + jnp.exp(x))),
}


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def plain_route(logits, k, scores, bias, groups, normalize, scale):
    """The router of DeepSeek-V3 as its authors wrote it, a token at a time; (experts, probabilities)."""
    values = np.asarray(PLAIN[scores](logits))
    chosen, weights = [], []
    for token in values:
        choice = token + (0 if bias is None else np.asarray(bias))
        if groups is not None:
            number, kept, best = groups
            by_group = choice.reshape(number, -1)
            of_group = np.sort(by_group, axis=1)[:, -best:].sum(axis=1)
            left = set(np.argsort(-of_group, kind="stable")[:kept].tolist())
            choice = np.concatenate(
                [row if g in left else np.full_like(row, -np.inf) for g, row in enumerate(by_group)]
            )
        top = np.argsort(-choice, kind="stable")[:k]
        weight = token[top] / (token[top].sum() if normalize else 1)
        chosen.append(top)
        weights.append(weight * scale)
    return np.array(chosen), np.array(weights)


@pytest.mark.parametrize("scores", PLAIN)
@pytest.mark.parametrize(
    ("bias", "groups", "normalize", "scale"),
    [(None, None, False, 1.0), (BIAS, None, True, 2.5), (BIAS, (4, 2, 2), True, 2.5), (None, (3, 1, 1), False, 16.0)],
    ids=["plain", "bias", "deepseek_v3", "deepseek_v2"],
)
def test_choices_and_probabilities(scores, bias, groups, normalize, scale):
    options = {"scores": scores, "bias": bias, "groups": groups, "normalize": normalize, "scale": scale}
    routing = jax.jit(lambda x: moe.route(x, K, **options))(LOGITS)
    chosen, weights = plain_route(LOGITS, K, scores, bias, groups, normalize, scale)
    np.testing.assert_array_equal(routing.experts, chosen)
    close(routing.probabilities, weights)

    def of_choices(x):
        values = jnp.take_along_axis(PLAIN[scores](x), chosen, 1)
        return jnp.sum(jnp.sin(values / (values.sum(-1, keepdims=True) if normalize else 1) * scale))

    def of_route(x):
        return jnp.sum(jnp.sin(moe.route(x, K, **options).probabilities))

    close(*jax.jit(lambda x: (jax.grad(of_route)(x), jax.grad(of_choices)(x)))(LOGITS))


def test_a_bias_moves_choices_alone_and_has_no_gradient():
    f = lambda bias: moe.route(LOGITS, 2, scores="sigmoid", bias=bias)  # noqa: E731

    @jax.jit
    def results(bias):
        return f(bias), jax.grad(lambda bias: f(bias).probabilities[0].sum() + f(bias).probabilities[1, 0])(bias)

    forced, gradient = jax.device_get(results(np.where(np.arange(EXPERTS) == 7, 9.0, 0.0)))
    assert (forced.experts[:, 0] == 7).all()
    scores = 1 / (1 + np.exp(-np.asarray(LOGITS)))
    second = np.take_along_axis(scores, forced.experts[:, 1:], 1)[:, 0]
    close(forced.probabilities[:, 0] / forced.probabilities[:, 1], scores[:, 7] / second)
    assert not gradient.any()
    assert not results(BIAS)[1].any()


@functools.partial(jax.jit, static_argnames="scores")
def first_probability(logits, scores):
    return jax.value_and_grad(lambda x: moe.route(x, 2, scores=scores).probabilities[0, 0])(logits)


@pytest.mark.parametrize("scores", PLAIN)
@pytest.mark.parametrize("logit", [-60.0, -200.0, -1e4, 200.0])
def test_extreme_logits_keep_probabilities_and_gradients_finite(scores, logit):
    logits = np.array([[logit, logit - 1, logit - 2]], "float32")
    value, gradient = first_probability(logits, scores)
    assert np.isfinite(gradient).all()
    growth = {"softmax": 1.0, "sigmoid": 1.0 if logit < 0 else 0.0, "sqrtsoftplus": 0.5 if logit < 0 else 0.0}[scores]
    np.testing.assert_allclose(value, 1 / (1 + np.exp(-growth)), rtol=3e-3)


def weights_of(width=4, hidden=3):
    shapes = {"x": (TOKENS, width), "gate_up": (EXPERTS, width, 2 * hidden), "down": (EXPERTS, hidden, width)}
    return {name: oracle.random(shape, "float64", i) for i, (name, shape) in enumerate(shapes.items())}


def test_masked_tokens_have_no_experts():
    mask = np.arange(TOKENS) % 3 != 1
    x, gate_up, down = jax.device_get(tuple(weights_of().values()))

    def layer(x, logits, mask=None):
        routing = moe.route(logits, K, mask=mask)
        y = moe.expert_mlp(x, gate_up, down, routing)
        losses = moe.load_balance_loss(logits, routing), moe.router_z_loss(logits, routing)
        return jnp.sum(jnp.sin(y)), (y, losses, routing)

    @jax.jit
    def results(x, logits, mask):
        return jax.value_and_grad(layer, (0, 1), has_aux=True)(x, logits, mask)

    logits = np.asarray(LOGITS)
    (_, (y, losses, routing)), gradients = jax.device_get(results(x, logits, mask))
    (_, (kept, losses_of_kept, _)), gradients_of_kept = results(x[mask], logits[mask], None)
    assert (routing.experts[~mask] == -1).all()
    assert routing.group_sizes.sum() == K * mask.sum()
    # Neither the values nor the gradients see what is in padding.
    for ours, expected in zip((y, *gradients), (kept, *gradients_of_kept), strict=True):
        assert not ours[~mask].any()
        close(ours[mask], expected)
    close(losses, losses_of_kept)
    (_, (_, losses, none)), _ = results(x, logits, np.zeros(TOKENS, bool))
    assert none.group_sizes.sum() == 0
    assert losses == (0, 0)


@pytest.mark.parametrize("scores", PLAIN)
def test_losses_of_tiny_scores_and_of_padding_have_finite_gradients(scores):
    logits = np.array([[-46.0] * 4, [-200.0] * 4, [-1e4] * 4, [0, 1, 2, 3]], "float32")
    loss = lambda x: moe.load_balance_loss(x, moe.route(x, 2, scores=scores), scores=scores)  # noqa: E731
    gradient, of_tiny = jax.jit(lambda x: (jax.grad(loss)(x), loss(x[:3])))(logits)
    assert np.isfinite(gradient).all()
    close(of_tiny, 1, 1e-5)

    @jax.jit
    @jax.grad
    def of_everything(x):
        routing = moe.route(x, 2, scores=scores, mask=jnp.array([True, False, False, True]))
        losses = moe.load_balance_loss(x, routing, scores=scores) + moe.router_z_loss(x, routing)
        return losses + routing.probabilities[:, 0].sum()

    for value in (-np.inf, np.inf, np.nan):
        logits[1:3] = value
        gradient = np.asarray(of_everything(logits))
        assert np.isfinite(gradient).all()
        assert not gradient[1:3].any()


def test_a_bias_of_minus_infinity_stays_within_the_kept_groups():
    logits, low = np.array([[0.0] * 4 + [1.0] * 4]), -np.inf
    bias = np.array([0, 0, 0, 0, 5, low, low, low])
    routing = jax.jit(lambda *given: moe.route(given[0], 2, scores="sigmoid", bias=given[1], groups=(2, 1, 1)))
    assert routing(logits, bias).experts.tolist() == [[4, 5]]


def test_sequences_of_padding_alone_do_not_count():
    @jax.jit
    def loss(logits):
        routing = moe.route(logits, 1, mask=jnp.array([True, True, False, False]))
        both = routing._replace(experts=jnp.array([[0], [1], [-1], [-1]], "int32"))
        return moe.load_balance_loss(logits, both, sequences=2)

    close(loss(np.zeros((4, 2))), 1)


def test_choices_of_no_expert():
    chosen = np.array([[2, -1, 5], [-1, -1, -1], [0, 0, 7], [-1, 99, -3]])
    logits = np.asarray(LOGITS)[:4]
    x, gate_up, down = jax.device_get(tuple(weights_of().values()))

    @jax.jit
    def results(x, logits, chosen):
        routing = moe.route(logits, experts=chosen)
        gradient = jax.grad(lambda z: (moe.route(z, experts=chosen).probabilities ** 2).sum())(logits)
        return moe.expert_mlp(x, gate_up, down, routing), routing, gradient

    y, routing, gradient = jax.device_get(results(x[:4], logits, chosen))
    np.testing.assert_array_equal(routing.experts, [[2, -1, 5], [-1, -1, -1], [0, 0, 7], [-1, 11, 0]])
    assert (routing.clamped, routing.group_sizes.sum()) == (2, 7)
    close(routing.probabilities.sum(-1), [1, 0, 1, 1])
    both = np.exp(logits[0, [2, 5]])
    close(routing.probabilities[0, [0, 2]], both / both.sum())
    assert np.isfinite(gradient).all()
    assert not y[1].any()
    close(y[0], results(x[:1], logits[:1], chosen[:1, ::2])[0][0])


def test_own_probabilities():
    chosen = jax.lax.top_k(LOGITS, K)[1]
    p = oracle.random((TOKENS, K), "float64", 3)
    routing = moe.route(LOGITS, experts=chosen, probabilities=p, scale=2.0)
    close(routing.probabilities, 2 * p)
    assert moe.route(LOGITS, experts=chosen, probabilities=p.astype("bfloat16")).probabilities.dtype == "float64"


@pytest.mark.parametrize("scores", PLAIN)
def test_losses_of_sequences_and_of_the_whole_batch(scores):
    tokens = 12
    logits, k = LOGITS[:tokens], 2

    def plain(logits, chosen):
        values = PLAIN[scores](logits)
        share = jnp.zeros(EXPERTS).at[chosen.reshape(-1)].add(1) / chosen.size
        return EXPERTS * jnp.sum(share * (values / values.sum(-1, keepdims=True)).mean(0))

    def of_part(logits):
        return moe.load_balance_loss(logits, moe.route(logits, k, scores=scores), scores=scores, axis_name="batch")

    @jax.jit
    def results(logits):
        routing = moe.route(logits, k, scores=scores)
        chosen, whole = routing.experts, plain(logits, routing.experts)
        parts = [plain(logits[i : i + 4], chosen[i : i + 4]) for i in range(0, tokens, 4)]
        ours = [moe.load_balance_loss(logits, routing, scores=scores, sequences=number) for number in (None, 3)]
        every = jax.vmap(of_part, axis_name="batch")(logits.reshape(3, 4, EXPERTS))
        return [*ours, every], [whole, jnp.mean(jnp.stack(parts)), jnp.full(3, whole)]

    jax.tree.map(close, *results(logits))


def test_a_balanced_bias_evens_out_the_load():
    """A router that prefers some experts strongly; after some steps all have about the same number of tokens."""
    logits = oracle.random((512, EXPERTS), "float64", 1) + jnp.linspace(0, 3, EXPERTS)[None]
    route = lambda bias: moe.route(logits, K, scores="sigmoid", bias=bias)  # noqa: E731

    def step(bias, _):
        sizes = route(bias).group_sizes
        return moe.balanced_bias(bias, sizes, rate=0.004), sizes

    _, sizes = jax.jit(lambda bias: jax.lax.scan(step, bias, length=400))(jnp.zeros(EXPERTS))
    mean = 512 * K / EXPERTS
    assert float(sizes[0].max()) > 1.8 * mean
    assert float(sizes[-1].max()) < 1.25 * mean
    split = jax.vmap(lambda b, s: moe.balanced_bias(b, s, axis_name="i"), in_axes=(None, 0), axis_name="i")
    both = jax.jit(lambda bias, sizes: (split(bias, sizes)[0], moe.balanced_bias(bias, sizes[0] + sizes[1])))
    close(*both(BIAS, np.asarray(sizes)[:2]))


@pytest.mark.multidevice(2)
@pytest.mark.slow
def test_masks_and_none_with_experts_on_two_devices():
    mesh = jax.make_mesh((2,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    x, gate_up, down = (jnp.asarray(a) for a in weights_of().values())
    x, logits, mask = x[:12], LOGITS[:12], jnp.arange(12) % 4 != 2

    def on_device(x, logits, mask, gate_up, down):
        return moe.expert_mlp(x, gate_up, down, moe.route(logits, K, mask=mask), mesh_axis="expert")

    P = jax.P("expert")
    spread = jax.shard_map(on_device, mesh=mesh, in_specs=(P,) * 5, out_specs=P)
    alone = moe.expert_mlp(x, gate_up, down, moe.route(logits, K, mask=mask))
    close(jax.jit(spread)(x, logits, mask, gate_up, down), alone)


ERRORS = [
    ({"scores": "tanh"}, ValueError, "route: scores is 'tanh'"),
    ({"bias": BIAS[1:]}, ValueError, r"route: bias is \(11,\): it must be \(experts,\), \(12,\) here"),
    ({"bias": jnp.zeros(EXPERTS, int)}, TypeError, "route: bias is int64"),
    ({"groups": (5, 2)}, ValueError, "number is 5, which does not divide the 12 experts"),
    ({"groups": (4, 5)}, ValueError, "kept must be at most 4"),
    ({"groups": (6, 1)}, ValueError, "k is 3 but 1 groups of 2 experts are kept"),
    ({"groups": (4, 0)}, ValueError, "kept is 0"),
    ({"groups": 4}, TypeError, "groups must be an ExpertGroups"),
    ({"mask": jnp.ones(TOKENS, int)}, TypeError, "route: mask is int64"),
    ({"scale": jnp.ones(2)}, ValueError, r"route: scale is of shape \(2,\): it must be a number"),
    ({"mask": jnp.ones(3, bool)}, ValueError, r"route: mask is \(3,\)"),
    ({"probabilities": jnp.ones((TOKENS, K))}, ValueError, "route: probabilities is given without experts"),
]


@pytest.mark.parametrize(("options", "kind", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_option(options, kind, message):
    with pytest.raises(kind, match=message):
        moe.route(LOGITS, K, **options)


def test_further_errors():
    chosen = jnp.zeros((TOKENS, 2), int)
    p = jnp.ones((TOKENS, 2))
    with pytest.raises(ValueError, match="route: bias is given with experts"):
        moe.route(LOGITS, experts=chosen, bias=BIAS)
    with pytest.raises(ValueError, match="normalize and scores have no effect"):
        moe.route(LOGITS, experts=chosen, probabilities=p, normalize=True)
    with pytest.raises(ValueError, match=r"route: probabilities is \(13, 2\): it must be \(tokens, k\), \(13, 1\)"):
        moe.route(LOGITS, experts=chosen[:, :1], probabilities=p)
    routing = moe.route(LOGITS, K)
    with pytest.raises(ValueError, match="load_balance_loss: sequences is 5: it must divide the 13 tokens"):
        moe.load_balance_loss(LOGITS, routing, sequences=5)
    with pytest.raises(ValueError, match=r"router_z_loss: logits is .* routing is of 13 tokens"):
        moe.router_z_loss(LOGITS[:2], routing)
    with pytest.raises(ValueError, match=r"balanced_bias: bias is \(12,\) and group_sizes \(3,\)"):
        moe.balanced_bias(BIAS, jnp.ones(3))
    with pytest.raises(TypeError, match="balanced_bias: bias is int64"):
        moe.balanced_bias(jnp.ones(3, int), jnp.ones(3))


def test_a_routing_is_exported_with_any_number_of_tokens():
    (tokens,) = jax.export.symbolic_shape("t")
    f = jax.jit(lambda x, mask: moe.route(x, K, scores="sigmoid", bias=BIAS, groups=(4, 2), mask=mask))
    shapes = (jax.ShapeDtypeStruct((tokens, EXPERTS), "float64"), jax.ShapeDtypeStruct((tokens,), "bool"))
    exported = jax.export.export(f, disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*shapes)
    mask = jnp.arange(TOKENS) > 2
    jax.tree.map(np.testing.assert_array_equal, exported.call(LOGITS, mask), f(LOGITS, mask))
