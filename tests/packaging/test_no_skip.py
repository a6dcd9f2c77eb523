"""VBGEMM_NO_SKIP, by which CI notices tests that it was meant to run."""

import no_skip
import pytest

pytest_plugins = "pytester"


@pytest.mark.parametrize(
    ("setting", "outcomes"),
    [
        ("", {"skipped": 4}),
        ("packages", {"skipped": 1, "failed": 2, "errors": 1}),
        ("1", {"failed": 3, "errors": 1}),
    ],
)
def test_skips_become_failures(pytester, monkeypatch, setting, outcomes):
    pytester.makepyfile(
        test_some="""
            import pytest

            def test_for_another_machine():
                pytest.skip("needs a GPU")

            def test_with_a_package():
                pytest.importorskip("no_such_package")

            def test_with_a_package_for_another_jax():
                pytest.skip("some_package 1.0 does not run in JAX 2.0: an error")

            @pytest.mark.xfail
            def test_that_is_expected_to_fail():
                raise AssertionError
        """,
        test_whole_module="""
            import pytest

            pytest.importorskip("no_such_package")
        """,
    )
    monkeypatch.setenv("VBGEMM_NO_SKIP", setting)
    done = pytester.runpytest_inprocess("--continue-on-collection-errors", "-p", "no:xdist", plugins=[no_skip])
    done.assert_outcomes(xfailed=1, **outcomes)
