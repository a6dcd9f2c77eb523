"""The environment variable VBGEMM_NO_SKIP, as hooks of pytest that conftest.py takes over.

VBGEMM_NO_SKIP=1 turns every skip into a failure, for machines that are meant to run everything, and
VBGEMM_NO_SKIP=packages those for want of a Python package that runs in this JAX, for environments that have the extra
`test` and a JAX in which all its packages run.
"""

import os

import pytest

# What the reasons of such skips say: pytest's importorskip, and tests/irreps/test_layers.py.
_WANT_OF_A_PACKAGE = ("could not import", "does not run in JAX")


def _fail_instead_of_skipping(report: pytest.TestReport | pytest.CollectReport) -> None:
    setting = os.environ.get("VBGEMM_NO_SKIP")
    reason = str(report.longrepr)
    fails = setting == "1" or (setting == "packages" and any(want in reason for want in _WANT_OF_A_PACKAGE))
    if report.skipped and fails and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"VBGEMM_NO_SKIP={setting}: {report.nodeid} was skipped: {report.longrepr}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    _fail_instead_of_skipping((yield).get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    # the importorskip of a module, which skips all its tests, is reported here
    _fail_instead_of_skipping((yield).get_result())
