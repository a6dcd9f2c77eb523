"""The page shows the figures of the files."""

import ragged_report
from ragged_cases import CASES, DIRECTIONS


def test_the_page_is_that_of_the_files():
    text = ragged_report.PAGE.read_text()
    assert text == ragged_report.page(text, ragged_report.read()), f"run {ragged_report.COMMAND}"


def test_every_case_is_measured():
    times = ragged_report.read()
    wanted = {
        (peer, case, direction) for peer in ("vbgemm", "cublas_dense") for case in CASES for direction in DIRECTIONS
    }
    assert {key for key in wanted if CASES[key[1]][1] > 1} <= set(times)


def test_tokamax_is_the_faster_of_its_kernels():
    assert ragged_report.read()["tokamax", "moe_e64_k1024_t4096", "fwd"] == 84.76113333320731
