"""The search for thresholds, on made-up timings."""

import math
import random
from statistics import geometric_mean

import pytest

pytest.importorskip("typer")

import jax_vbgemm as vb
import planners
from candidates import Candidate, Measured, list_of
from jax_vbgemm._src.planner import catalogue_for
from stand_in import H100, driver, read_cases
from workloads import problems_named, read_csv


@pytest.mark.parametrize("corner", [20_000, 60_000, 135_168])
# with 1 the rate is smooth; otherwise it falls whenever a further wave begins
@pytest.mark.parametrize("slots", [1, 33_792])
def test_the_break_off_is_found(corner, slots):
    rng = random.Random(0)
    points = []
    for rows in planners.CURVE_ROWS:
        tlp = 256 * planners.CURVE_COLUMNS * rows
        waves = max(tlp / corner, 1.0)
        full = 1.0 if slots == 1 else (waves / math.ceil(waves)) ** 0.3
        points.append((tlp, 30 * min(1.0, tlp / corner) * full * rng.lognormvariate(0, 0.01)))
    rng.shuffle(points)
    found = planners.break_off(points)
    assert corner / 1.35 < found.tlp < corner * 1.35
    assert found.drop > 1.5


def test_what_never_breaks_off():
    assert planners.break_off([(1000 * 2**i, 10.0) for i in range(8)]).drop == pytest.approx(1)
    with pytest.raises(ValueError, match="at least four points, there are 3"):
        planners.break_off([(1, 1), (2, 2), (3, 3)])


def test_the_search_takes_the_shortest_and_tells_what_luck_gives():
    times = {
        "1": {"a": 10.0, "b": 10.0, "c": 10.0},
        "2": {"a": 8.0, "b": 8.0, "c": 8.0},
        "3": {"a": 5.0, "b": 13.0, "c": 13.0},
    }
    found = planners.search(times, "1")
    assert found.best == "2"
    assert found.gain == found.held_out == pytest.approx(1.25)
    lucky = {"1": {"a": 10.0, "b": 10.0, "c": 10.0}, "3": {"a": 5.0, "b": 11.0, "c": 11.0}}
    found = planners.search(lucky, "1")
    assert found.best == "3"
    assert found.gain == pytest.approx(geometric_mean([2, 10 / 11, 10 / 11]))
    assert found.held_out < 1  # without workload a, nobody would take it


def test_the_search_keeps_the_default_among_equals():
    same = {value: {"a": 3.0, "b": 4.0} for value in "12345"}
    assert planners.search(same, "4").best == "4"
    assert planners.search({**same, "4": {"a": 5.0, "b": 5.0}}, "4").best == "3"  # 1, 2, 3, 5 are equal


def test_values_are_compared_where_all_were_measured():
    def candidate(workload, value):
        return Candidate(planners.BALANCED, workload, "fp32", value, f"{value}#0", 1.0, 1.0, 1)

    measured = Measured([])
    measured.times |= {(w, "fp32", f"{v}#0"): [1.0] for w, v in (("a", "1"), ("a", "2"), ("b", "1"))}
    tried = planners.by_value([candidate(w, v) for w in "ab" for v in "12"], measured)
    assert tried == {"1": {"a": 1.0}, "2": {"a": 1.0}}


def test_old_and_new_tlp_differ_only_beyond_what_a_class_can_keep_active():
    """Comparing them therefore needs thresholds above that."""
    catalogue = catalogue_for("float32", H100)
    problems = problems_named("any_mn512_k512_b64")
    choices = {
        (threshold, new): vb.LoadBalanced(threshold, bound="class" if new else "none")(
            problems, H100, catalogue
        ).choices
        for threshold in (33792, 270336)
        for new in (True, False)
    }
    assert choices[33792, True] == choices[33792, False]
    assert choices[270336, True] != choices[270336, False]


def test_planners_from_cases_to_values(tmp_path, monkeypatch, capsys):
    for name, value in (
        ("SAMPLE", ("any_mn128_k128_b16", "any_mn128_k256_b16")),
        ("expand", lambda _: planners.SAMPLE),
    ):
        monkeypatch.setattr(planners, name, value)
    monkeypatch.setattr(planners.console, "width", 200)
    file = tmp_path / "p.case"
    planners.cases(file)
    listed = list(read_csv(Candidate, list_of(file)))
    assert len(read_cases(file)) == len({(c.workload, c.plan) for c in listed}) < len(listed)
    assert {c.part for c in listed} == {"compare", "curve", *planners.options(H100)}
    tlp = {c.plan: c.tlp for c in listed if c.part == "curve"}
    assert set(tlp.values()) == {256 * planners.CURVE_COLUMNS * rows for rows in planners.CURVE_ROWS}
    measured = driver(file, tmp_path / "p.csv", lambda peer, _: 10 * max(tlp.get(peer, 0) / 50_000, 1))
    planners.report(list_of(file), [measured])
    assert "new TLP over old" in capsys.readouterr().out
    planners.thresholds(list_of(file), [measured])
    lines = capsys.readouterr().out
    advised = int(lines.partition("  tlp_threshold=")[2].split()[0])
    assert 40_000 < advised < 62_500
    assert f"keep load_balanced_threshold={H100.load_balanced_threshold}" in lines  # all took the same
