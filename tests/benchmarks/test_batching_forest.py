"""The random forest of Li 2019, section 5, on made-up timings."""

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("sklearn")

import jax_vbgemm as vb
from batching_forest import PART, SAMPLES, Forest, sample, train, workload
from candidates import Candidate, Measured
from jax_vbgemm._src.planner import catalogue_for
from jax_vbgemm._src.planner.papers.coordinated import features_of
from jax_vbgemm._src.problem import ProblemSizes
from stand_in import H100


def made_up(samples, model_is_right=True):
    """Plans of both batchings and made-up times, by which binary batching is faster where the mean K is above 200."""
    listed, times = [], Measured([])
    for index in range(samples):
        k = features_of(ProblemSizes.of(sample(index)))[2]
        for heuristic in ("threshold", "binary"):
            fast = (heuristic == "binary") == (k > 200)
            expected = fast if model_is_right else not fast
            listed.append(
                Candidate(PART, workload(index), "fp32", heuristic, f"{heuristic}#{index}", 1, 1 if expected else 2, 1)
            )
            times.times[workload(index), "fp32", f"{heuristic}#{index}"] = [10.0 if fast else 15.0]
    return listed, times


@pytest.mark.slow
def test_the_forest_learns_the_rule_and_is_compared(tmp_path):
    forest, found = train(*made_up(200))
    assert found.samples == 200
    assert found.forest_right > 0.95
    assert found.forest_loss < 1.02
    assert (found.model_right, found.model_loss) == (1, pytest.approx(1))
    assert all(1.05 < loss < 1.5 for loss in found.always.values())
    assert train(*made_up(200, model_is_right=False))[1].model_right == 0
    forest.write(tmp_path / "forest.csv")
    again = Forest.read(tmp_path / "forest.csv")
    for index in range(200, 300):
        features = features_of(ProblemSizes.of(sample(index)))
        assert forest(*features) == again(*features)
        if abs(features[2] - 200) > 50:
            assert forest(*features) == ("binary" if features[2] > 200 else "threshold")


def test_the_exported_forest_is_scikit_learns():
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(0)
    x, y = rng.random((300, 4)) * 1000, rng.integers(0, 2, 300)
    fitted = RandomForestClassifier(9, max_depth=8, random_state=0).fit(x, y)
    forest = Forest.of(fitted)
    probabilities = fitted.predict_proba(x)[:, 1]
    clear = np.abs(probabilities - 0.5) > 1e-9
    mine = np.array([forest(*row) == "binary" for row in x])
    assert (mine == (probabilities > 0.5))[clear].all()


def test_it_is_a_batching_of_the_planner():
    forest, _ = train(*made_up(100))
    for index in (0, 1, 2, 3):
        problems = sample(index)
        plan = vb.Coordinated(batching=forest)(problems, H100, catalogue_for("float32", H100))
        assert plan.notes == (f"{forest(*features_of(ProblemSizes.of(problems)))} batching",)


def test_samples_are_many_and_of_both_sorts():
    assert SAMPLES > 400
    some = [sample(index) for index in range(60)]
    assert {len(problems) for problems in some} == {4, 8, 16, 32, 64, 128, 256}
    assert 0.2 < np.mean([len(set(problems)) == 1 for problems in some]) < 0.8


def test_too_few_measurements_are_an_error():
    with pytest.raises(ValueError, match="4 samples were measured with both batchings; 10 are the fewest"):
        train(*made_up(4))
