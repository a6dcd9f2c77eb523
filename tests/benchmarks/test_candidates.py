"""Case files that hold each plan once, and the list beside them."""

import pytest

pytest.importorskip("typer")

import cases
import jax_vbgemm as vb
from candidates import Candidate, Measured, Writer, list_of, ratios, tabulate
from jax_vbgemm._src.planner import PLANNERS, catalogue_for
from stand_in import H100, PROBLEMS, driver, read_cases
from workloads import problems_named, read_csv


def test_equal_plans_are_measured_once(tmp_path):
    file = tmp_path / "a.case"
    tile = vb.Uniform(("small", 128))
    with Writer(file, "h100") as writer:
        writer.add("one", "any_x", PROBLEMS, "fp32", {"a": tile, "b": vb.Uniform(("medium", 128)), "c": tile})
        writer.add("two", "any_x", PROBLEMS, "fp32", {"d": tile})
        writer.add("two", "any_x", PROBLEMS, "tf32", {"d": tile})
        writer.add("two", "any_y", PROBLEMS, "fp32", {"d": tile}, rounds=2)
    found = read_cases(file)
    assert len(found) == writer.cases == 5
    assert [(workload, kind) for _, workload, kind, *_ in found] == [
        ("any_x", "float32"), ("any_x", "float32"), ("any_x", "tf32"), ("any_y", "float32"), ("any_y", "float32"),
    ]  # fmt: skip
    listed = list(read_csv(Candidate, list_of(file)))
    assert [c.planner for c in listed] == ["a", "b", "c", "d", "d", "d"]
    assert listed[0].plan == listed[2].plan == listed[3].plan == found[0][0] != listed[1].plan
    table = tabulate(
        listed, Measured([driver(file, tmp_path / "a.csv", lambda peer, _: 2.0 if peer[0] == "b" else 1.0)])
    )
    assert table["any_x"] == {"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0}
    assert ratios(table, "a", "b") == [2.0]
    assert ratios(table, "a", "b", ["any_y"]) == []


def test_only_some_plans_and_none_that_is_hopeless(tmp_path):
    tiles = {str(tile.key): vb.Uniform(tile.key) for tile in catalogue_for("float32", H100)}
    with Writer(tmp_path / "a.case", "h100") as writer:
        writer.add("one", "any_x", PROBLEMS, "fp32", {"auto": PLANNERS["auto"], **tiles}, hopeless=1.5)
    listed = list(read_csv(Candidate, list_of(tmp_path / "a.case")))
    assert 1 < len(listed) < len(tiles) + 1
    assert all(c.predicted_us <= 1.5 * listed[0].predicted_us for c in listed)
    with Writer(tmp_path / "b.case", "h100") as writer:
        writer.add("one", "any_x", PROBLEMS, "fp32", tiles, only={listed[-1].plan})
    assert {c.plan for c in read_csv(Candidate, list_of(tmp_path / "b.case"))} == {listed[-1].plan}


def test_wrong_results_are_no_measurement(tmp_path):
    with Writer(tmp_path / "a.case", "h100") as writer:
        writer.add("one", "any_x", PROBLEMS, "fp32", {"auto": PLANNERS["auto"]})
    with pytest.raises(ValueError, match="wrong results of auto#"):
        Measured([driver(tmp_path / "a.case", tmp_path / "a.csv", nbad=1)])


def test_a_case_is_what_bench_writes(tmp_path):
    cases.write(tmp_path / "a.case", ["any_mn128_k128_b16"], ["auto"], ["all"], ["bf16"], "h100")
    found = read_cases(tmp_path / "a.case")
    assert len(found) == 1 + len(catalogue_for("bfloat16", H100))
    assert [tuple(row)[:3] for row in found[0][3]] == [(p.m, p.n, p.k) for p in problems_named("any_mn128_k128_b16")]
