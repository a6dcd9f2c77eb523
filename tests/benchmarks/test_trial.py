"""The plans that are tried against auto's plan, and the choice of the winner, on made-up timings."""

import pytest

pytest.importorskip("typer")

import trial
from candidates import Candidate, list_of
from jax_vbgemm._src.planner import catalogue_for
from jax_vbgemm._src.problem import problems_of
from stand_in import H100, PROBLEMS, driver, read_cases


@pytest.mark.parametrize("kind", ["float32", "tf32", "bfloat16"])
def test_whatever_is_tried_is_a_plan(kind):
    problems, catalogue = problems_of([*PROBLEMS, (0, 3, 4), (5, 6, 0), (700, 300, 40)]), catalogue_for(kind, H100)
    tried = trial.planners(problems, kind, H100, randoms=6)
    assert next(iter(tried)) == "auto"
    plans = {name: planner(problems, H100, catalogue) for name, planner in tried.items()}
    for plan in plans.values():
        plan.validate()
        assert plan.catalogue == catalogue
    assert len({plans[f"random {seed}"].choices for seed in range(6)}) > 1
    auto = plans["auto"].predicted_seconds
    assert all(plans[name].predicted_seconds >= 0.999 * auto for name in plans if name.startswith("only"))


def test_trial_from_cases_to_the_finals(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trial, "SAMPLE", ("any_mn128_k128_b16",))
    monkeypatch.setattr(trial.console, "width", 200)
    file = tmp_path / "t.case"
    trial.cases(file, precision=["fp32", "bf16"], randoms=2)
    first = driver(
        file, tmp_path / "t.csv", lambda peer, _: {"auto": 10.0, "unif": 8.0, "rand": 8.0}.get(peer[:4], 20.0)
    )
    trial.finals(list_of(file), tmp_path / "f.case", [first], randoms=2)
    rounds = [peer for peer, _, kind, *_ in read_cases(tmp_path / "f.case") if kind == "float32"]
    assert len(rounds) == trial.ROUNDS * (1 + trial.FINALISTS)
    assert rounds[: 1 + trial.FINALISTS] == rounds[1 + trial.FINALISTS : 2 * (1 + trial.FINALISTS)]
    final = driver(tmp_path / "f.case", tmp_path / "f.csv", lambda peer, _: 10.0 if peer[:4] == "auto" else 9.0)
    trial.report(list_of(file), [first], [final])
    lines = capsys.readouterr().out.splitlines()
    assert sum("any_mn128_k128_b16" in line and "1.250" in line and "1.111" in line for line in lines) == 2


def entry(planner, us):
    return Candidate("trial", "w", "fp32", planner, f"{planner}#0", 1.0, 1.0, 1), us


def test_auto_may_be_the_best():
    auto, _ = entry("auto", 5.0)
    assert trial.Trial(auto, 5.0, []).ratio == 1
    assert trial.Trial(auto, 5.0, [entry("a", 6.0)]).best == (auto, 5.0)
    found = trial.Trial(auto, 5.0, [entry("a", 4.0), entry("b", 6.0)])
    assert (found.ratio, found.best[0].planner) == (1.25, "a")


def test_luck_of_the_first_timings_does_not_count():
    auto, _ = entry("auto", 10.0)
    first = trial.Trial(auto, 10.0, [entry("lucky", 8.0), entry("b", 9.5)])
    again = trial.Trial(auto, 10.0, [entry("b", 9.5), entry("lucky", 10.5)])
    assert trial.judge(first, again) == trial.Verdict(1.25, 10 / 10.5, 10 / 9.5)
    assert trial.judge(first, None) == trial.Verdict(1.25)
