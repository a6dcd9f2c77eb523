"""Whole programs before and after: all variants of the stand-ins compute the same, and missing packages are told."""

import importlib.util

import pytest
from slow_cases import slow_except

pytest.importorskip("typer")

import jax
import whole_programs
from typer.testing import CliRunner

import jax_vbgemm as vb


@pytest.mark.parametrize("program", slow_except(whole_programs.PROGRAMS, ["lora"]))
def test_variants_agree(program):
    cases = whole_programs.cases_of(program, "small")
    for case in cases:
        rows = whole_programs.measure(program, "small", case, budget=0.0, least_rounds=1)
        assert [row.variant for row in rows] == ["group", *case.variants]
        assert all(row.error < 1e-4 for row in rows)


@pytest.mark.parametrize("program", slow_except(["gemma4", "qwen3"], ["gemma4"]))
def test_variants_of_layers_of_tunix_agree(program):
    if importlib.util.find_spec("tunix") is None:
        pytest.skip("tunix is not installed")
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for case in whole_programs.cases_of(program, "small"):
            expected = jax.jit(case.before)(*case.args)
            for name, function in case.variants.items():
                assert whole_programs.error_of(jax.jit(function)(*case.args), expected) < 1e-5, (case.step, name)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's decisions")
@pytest.mark.parametrize("program", slow_except(whole_programs.PROGRAMS, ["blocks"]))
def test_group_leaves_small_programs_of_a_cpu_as_they_are(program):
    for case in whole_programs.cases_of(program, "small"):
        before, after = (
            jax.jit(lambda *args, f=f: f(*args)).lower(*case.args).as_text()
            for f in (case.before, vb.group(case.before))
        )
        assert "dot_general" in before
        assert after == before


def test_a_package_that_is_not_installed_is_told(monkeypatch):
    def absent(program, size):
        raise ImportError(f"no package for {program}")

    monkeypatch.setattr(whole_programs, "cases_of", absent)
    result = CliRunner().invoke(whole_programs.app, ["peps", "--size", "small"])
    assert result.exit_code == 0
    assert "peps: skipped, no package for peps" in result.output
