"""The page of the benchmarks: its arithmetic on made-up figures; the committed page equals the one made from its
figures."""

import csv
from dataclasses import astuple, fields
from pathlib import Path

import pytest

pytest.importorskip("typer")

import figures
import plots
import report
from workloads import Row

ROOT = Path(__file__).parents[2]
WORKLOAD = "any_mn128_k128_b16"


def row(peer, us, workload=WORKLOAD, precision="fp32", cache="cold", nbad=0):
    return Row(peer, workload.split("_")[0], workload, precision, 16, 0.1, cache, us, us, 1e-7, 1e-7, nbad, "")


@pytest.fixture
def results(tmp_path):
    def make(ours, peers, best=((WORKLOAD, "fp32", 10.0, "cutlass_simt_32x32", 2.0),)):
        for name, rows in (("ours.csv", map(astuple, ours)), ("peers.csv", map(astuple, peers)), ("best.csv", best)):
            head = [f.name for f in fields(Row)]
            if name == "best.csv":
                head = ["workload", "precision", "best_graph_us", "best_peer", "limit_us"]
            with (tmp_path / name).open("w", newline="") as file:
                csv.writer(file).writerows([head, *rows])
        sources = "\n".join(f"{name},a device,2026-11-21,made up" for name in ("ours.csv", "peers.csv", "best.csv"))
        (tmp_path / "sources.csv").write_text(f"file,device,date,about\n{sources}\n")
        return figures.Results.read(*(tmp_path / f"{name}.csv" for name in ("ours", "peers", "best", "sources")))

    return make


def test_only_right_results_from_memory_count(results):
    found = results(
        [row("vbgemm_auto", 5.0), row("vbgemm_auto", 1.0, cache="hot")],
        [
            row("cutlass_simt_32x32", 10.0), row("cutlass_simt_64x64", 8.0),
            row("cutlass_simt_32x32", 1.0, cache="hot"), row("zhang25", 1.0, nbad=3),
            row("zhang25_fixed", 15.0), row("jax_ragged_dot", 2.0, precision="bf16"),
        ],
    )  # fmt: skip
    assert found.ours == {(WORKLOAD, "fp32"): 5.0}
    assert figures.gains(found.ours, found.peers["CUTLASS grouped"]) == {("any", "fp32"): [1.6]}
    assert figures.gains(found.ours, found.peers["Zhang 2025, mended"]) == {("any", "fp32"): [3.0]}
    assert figures.gains(found.ours, found.best_times) == {("any", "fp32"): [2.0]}
    assert figures.shares(found.ours, found.best) == {("any", "fp32", 16): pytest.approx(0.4)}
    assert figures.shares(found.best_times, found.best) == {("any", "fp32", 16): pytest.approx(0.2)}


def test_a_peer_measured_beside_us_replaces_the_file_s(results):
    found = results([row("vbgemm_auto", 5.0), row("cublas_loop", 50.0)], [row("cublas_loop", 55.0)])
    assert found.peers[figures.LOOP] == {(WORKLOAD, "fp32"): 50.0}
    assert found.machines == {"fp32": pytest.approx(1.1)}
    assert "differ by up to 10%" in report.page(found, "plots", "command")


def test_wrong_results_of_ours_make_no_page(results):
    with pytest.raises(ValueError, match=f"wrong results of vbgemm_auto on {WORKLOAD} fp32"):
        results([row("vbgemm_auto", 5.0, nbad=1)], [])


def test_a_file_of_unknown_origin_makes_no_page(tmp_path):
    (tmp_path / "sources.csv").write_text("file,device,date,about\n")
    with pytest.raises(ValueError, match=r"has no line for .*new\.csv"):
        figures.source_of(tmp_path / "new.csv", tmp_path / "sources.csv")


def test_every_committed_file_says_where_it_was_measured():
    folder = report.RESULTS
    files = {str(file.relative_to(folder)) for file in folder.rglob("*.csv")} - {"sources.csv"}
    with (folder / "sources.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert sorted(row["file"] for row in rows) == sorted(files)
    assert all(row["device"] and row["date"] and row["about"] for row in rows)


@pytest.mark.parametrize(
    ("peer", "title"),
    [
        ("torch_padded_bmm", "torch.bmm, padded before"),
        ("torch_padded_bmm_withpad", "torch.bmm, padding"),
        ("cublas_loop", "cuBLAS loop"),
        ("cutlass_sm90ptr_bf16_64x128_pp", "CUTLASS grouped"),
        ("somebody_new", "somebody_new"),
    ],
)
def test_titles(peer, title):
    assert figures.title_of(peer) == title


def committed():
    peers = report.RESULTS / "peers"
    return figures.Results.read(
        report.RESULTS / "h100_kernel.csv", peers / "h100.csv", peers / "h100_best.csv", report.RESULTS / "sources.csv"
    )


def test_the_committed_page_is_what_the_figures_say():
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert text == report.page(committed(), "benchmarks", report.COMMAND), f"run {report.COMMAND}"


def test_the_tables_of_the_speed_page_are_what_the_figures_say():
    text = report.SPEED.read_text()
    assert text == report.speed(text, committed(), report.RESULTS / "h100_skinny.csv"), f"run {report.COMMAND}"


def test_plots_are_small(tmp_path):
    pytest.importorskip("matplotlib")
    files = plots.draw(committed(), tmp_path)
    assert [file.name for file in files] == ["limit.svg", "peers.svg"]
    assert all((ROOT / "docs" / "benchmarks" / file.name).exists() for file in files)
    assert all(file.stat().st_size < 100_000 for file in files)


@pytest.mark.parametrize("colour", [plots.TEXT, *plots.COLOURS.values(), *(c for _, c in plots.FAMILY_STYLE.values())])
def test_colours_are_seen_on_white_and_on_dark(colour):
    def luminance(text):
        parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for background in ("#ffffff", "#0d1117"):  # GitHub's two
        low, high = sorted((luminance(colour), luminance(background)))
        assert (high + 0.05) / (low + 0.05) >= 3
