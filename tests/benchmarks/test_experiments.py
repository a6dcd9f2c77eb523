"""The papers' experiments: their plans and page; the committed page equals the one made from its figures."""

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

import batching_forest
import experiments
import experiments_data
import experiments_page
import planners
from candidates import Candidate, Measured, list_of
from jax_vbgemm._src.planner import PLANNERS
from stand_in import H100, driver, read_cases
from workloads import expand, problems_named, read_csv

NAMES = {
    "grids": ["any_mn128_k128_b16", "any_mn128_k256_b64", "pow2_mn128_k128_b16", "pow2_mn128_k256_b64"],
    "inception*": ["inception_1", "inception_2"],
    "squeezenet*": ["squeezenet_fire2"],
    "densenet*": ["densenet_block1"],
    "ism2*": ["ism2_m10000_k8_n8"],
    "tsm2*": ["tsm2_s10240_n16"],
}


@pytest.fixture
def few(monkeypatch):
    """Fewer workloads, for which all experiments still run."""

    def chosen(names):
        return [name for pattern in names for name in NAMES.get(pattern, [pattern])]

    for module in (experiments, planners):
        monkeypatch.setattr(module, "expand", chosen)
    monkeypatch.setattr(planners, "SAMPLE", ("any_mn128_k128_b16", "any_mn128_k256_b16"))
    monkeypatch.setattr(batching_forest, "SAMPLES", 40)
    monkeypatch.setattr(experiments, "BATCH_SIZES", (8, 16))


@pytest.mark.slow
def test_from_cases_to_the_page(few, tmp_path):
    file = tmp_path / "e.case"
    experiments.cases(file)
    listed = list(read_csv(Candidate, list_of(file)))
    assert len(read_cases(file)) == len({(c.workload, c.precision, c.plan) for c in listed}) < len(listed)
    for name in ("tall_skinny", "coordinated, tiling alone", "sort_split, one pass", "load_balanced, by device"):
        assert any(c.planner == name for c in listed)
    on_tensor_cores = {c.planner: c.predicted_us for c in listed if c.part == "tensor"}
    assert on_tensor_cores["sort_split"] != on_tensor_cores["sort_split, ordinary tiles"]

    def page(name, measured):
        data = experiments_data.Data(listed, Measured(measured), planners.PEERS, H100)
        files = experiments_page.write(data, tmp_path / f"{name}.md")
        assert all(file.stat().st_size > 500 for file in files)
        assert {file.suffix for file in files} == {".md", ".svg"}
        return files[0].read_text()

    predicted = page("predicted", [])
    assert "the cost model's predictions" in predicted
    assert "Not measured yet" in predicted
    made_up = driver(file, tmp_path / "e.csv", lambda peer, _: 5.0 if peer.startswith("threshold") else 10.0)
    measured = page("measured", [made_up])
    assert "Times are measured on an H100" in measured
    assert "forest, on samples held out" in measured
    assert "| load_balanced over coordinated | 1.94x (A800) | 1.00x (4) |" in measured
    assert "nan" not in measured
    assert "where the threshold is out of reach, the smallest tiles" in measured
    assert "former default" not in measured


def test_the_committed_page_is_what_its_figures_say(tmp_path):
    experiments.page(output=tmp_path / "experiments.md")
    assert (tmp_path / "experiments.md").read_text() == experiments.PAGE.read_text()


def test_the_experiments_are_the_papers():
    assert set(experiments.READINGS) & set(PLANNERS) == set()
    assert len(expand(["inception*"])) == 9
    assert [p.k for p in problems_named("squeezenet_fire2")] == [16, 144]
    assert sum(p.k for p in problems_named("densenet_block4")) == 512 + 15 * 32


def test_what_was_measured_is_shown():
    """The released kernels of two papers, and tall and skinny products in every precision."""
    page = experiments.PAGE.read_text()
    for title in ("Li's released kernels", "Zhang's, mended", "ism2, tf32:", "tsm2, tf32:"):
        assert title in page
    assert 'measured with `unreached="smallest"`, its former default' in page
    assert page.index("## Latency by batch size") < page.index("experiments/latency.svg")
