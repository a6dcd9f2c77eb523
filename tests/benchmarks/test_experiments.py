"""The papers' experiments: their plans and page; the committed page equals the one made from its figures."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

import batching_forest
import experiments
import experiments_batches
import experiments_data
import experiments_figures
import experiments_occupancy
import experiments_page
import experiments_threads
import experiments_tsm2
import one_kernel
import planners
import profile_occupancy
from candidates import Candidate, Measured, list_of
from jax_vbgemm._src.planner import PLANNERS, catalogue_for
from stand_in import H100, driver, read_cases
from workloads import Row, expand, problems_named, read_csv

NAMES = {
    "grids": ["any_mn128_k128_b16", "any_mn128_k256_b64", "pow2_mn128_k128_b16", "pow2_mn128_k256_b64"],
    "inception*": ["inception_1", "inception_2"],
    "squeezenet*": ["squeezenet_fire2"],
    "densenet*": ["densenet_block1"],
    "ism2*": ["ism2_m10000_k8_n8"],
    "tsm2*": ["tsm2_s10240_n16"],
}


MODULE = {"vbgemm": 10, "flax_conv": 30}  # microseconds


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
    monkeypatch.setattr(experiments, "LI_SIZES", (128,))
    monkeypatch.setattr(experiments, "LI_K", (16, 64))
    monkeypatch.setattr(experiments, "LI_BATCHES", (4, 8))
    monkeypatch.setattr(experiments, "ZHANG_BATCHES", (8, 32))
    monkeypatch.setattr(experiments, "COLUMN_SIZES", (10240,))


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

    def page(name, measured, later="none"):
        data = experiments_data.Data(listed, Measured(measured), planners.PEERS, H100)
        files = experiments_page.write(data, experiments_batches.read(str(tmp_path / later)), tmp_path / f"{name}.md")
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

    names = dict.fromkeys(line.split()[0] for line in file.with_suffix(".sizes").read_text().splitlines())
    assert {"range_b8", "inception_1", "li_mn128_k16_b4", "any_mn128_k128_b32"} <= set(names)
    heading = ",".join(field.name for field in fields(Row))
    rows = [f"cublas_loop,g,{name},fp32,1,1,cold,20,30,0,0,0," for name in names]
    (tmp_path / "e_cublas.csv").write_text("\n".join([heading, *rows]) + "\n")
    conv = [f"{peer},g,inception_4a_b1_forward,fp32,4,1,hot,{us},nan,0,nan,0," for peer, us in MODULE.items()]
    (tmp_path / "e_modules.csv").write_text("\n".join([heading, *conv]) + "\n")
    later = page("later", [made_up], "e")
    assert "| 1.87x (A800), 2.88x over MIOpen (MI210) | 3.00x (1) | 3.00x |" in later
    assert "| load_balanced over a cuBLAS loop | 7.18x (A800) | 2.00x (8) | 2.00x | 2.00x |" in later
    assert "| tiling and batching over default |  | 2.00x (4) | 2.00x | 2.00x |" in later
    assert "| load_balanced over cuBLAS on 8 streams |  | not measured yet |" in later


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
    for title in ("Li's released kernels", "Zhang's, mended", "| ism2, tf32 |", "| tsm2, tf32 |"):
        assert title in page
    assert 'measured with `unreached="smallest"`, its former default' in page
    assert page.index("## Latency by batch size") < page.index("experiments/latency.svg")


def test_the_papers_kernels(tmp_path):
    """The tables of the paper's versions, from made-up times of which the ratios are known."""
    lines = ["experiment,kernel,precision,m,k,n,t1,t2,t3,tcf,us,gbytes_per_s,of_peak,error,nbad"]

    def add(experiment, kernel, m, k, n, us, tcf=1, t=(128, 16, 4), nbad=0):
        for precision in ("fp32", "fp64"):
            sizes = ",".join(map(str, (m, k, n, *t, tcf)))
            lines.append(f'{experiment},"{kernel}",{precision},{sizes},{us},1,{1 / us},1e-7,{nbad}')

    def section():
        file = tmp_path / "tsm2.csv"
        file.write_text("\n".join(lines) + "\n")
        return "\n".join(experiments_tsm2.section(experiments_tsm2.read(file)))

    for s, cublas in ((10240, 10), (20480, 40)):
        for kernel, us in {"V0": 120, "V1": 40, "V2": 20, "V3": 10, "in flight, 8 stages": 5, "cuBLAS": cublas}.items():
            add("versions", kernel, s, s, 16, us)
        add("versions", "in flight, 16 stages", s, s, 16, 8)
    add("parameters", "V3", 20480, 20480, 16, 10)
    add("parameters", "V3", 20480, 20480, 16, 5, t=(64, 16, 8))
    add("parameters", "V3", 20480, 20480, 16, 15, t=(64, 8, 8))
    add("uneven", "V3", 15360, 7680, 16, 4)
    add("small k", "V3", 15360, 4, 16, 20)
    for tcf, us in ((1, 8), (2, 4)):
        for kernel in ("V3", "ISM2-2", "ISM2-2 from zero"):
            add("tcf", kernel, 10**7, 16, 16, us, tcf)
    add("tcf", "cuBLAS", 10**7, 16, 16, 6, 0)
    text = section()
    for row in (
        "| V1 over V0: outer products | 2.2-4.7x | 3.00x (3.00-3.00x) | 3.00x (3.00-3.00x) |",
        "| asynchronous copies over cuBLAS (ours) |  | 4.00x (2.00-8.00x) | 4.00x (2.00-8.00x) |",
        "| fp32 | 64, 16, 8 | 2.00x | 3.00x |",
        "| V3, fp64 | 5% | 25% |",
        "| Algorithm 7, fp32 | 12% | 25% |",
        "| 10^7, fp64 | 4 | 2 | 1.50x (1.50-1.50x) | 1.50x (1.50-1.50x) | 1.50x (1.50-1.50x) | 25%-25% | 17%-17% |",
        "| 10^4, fp32 | 1 | not measured yet |",
    ):
        assert row in text
    assert "They have not been measured yet." not in text

    add("versions", "V3", 10240, 10240, 2, 1, nbad=1)
    with pytest.raises(ValueError, match=r"V3 computed versions .* wrong"):
        section()
    assert "They have not been measured yet." in "\n".join(experiments_tsm2.section([]))


def test_every_figure_has_a_row():
    """The numbered figures and tables of the papers whose text we have; the links lead to headings of the page."""
    numbered = {"Li": (11, 2), "Zhang": (11, 6), "Rivera": (14, 0)}  # figures and tables
    for paper, (figures, tables) in numbered.items():
        mine = [figure for of, figure, *_ in experiments_figures.FIGURES if of == paper]
        for word, last in (("Fig", figures), ("Table", tables)):
            found = [int(n) for figure in mine if figure.startswith(word) for n in re.findall(r"\d+", figure)]
            assert sorted(found) == list(range(1, last + 1))
    headings = re.findall(r"^##+ (.*)$", experiments.PAGE.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(experiments_figures.SECTIONS.values()) <= anchors


def test_one_kernel_for_a_batch(tmp_path):
    """The plans of this experiment are those of the planners in one launch, and the header can still be changed."""
    problems, catalogue = problems_named("any_mn256_k128_b16"), catalogue_for("float32", H100)
    for name, kernel in (("coordinated", "t256_heavy"), ("load_balanced", "t256_light")):
        plan = one_kernel.PLANNERS[f"{name}, one kernel"](problems, H100, catalogue)
        usual = PLANNERS[name](problems, H100, catalogue)
        plan.validate()
        assert [launch.kernel for launch in plan.launch_form()[2]] == [kernel]
        assert [launch.kernel for launch in usual.launch_form()[2]] != [kernel]
        assert plan.choices == usual.choices
    one_kernel.header(tmp_path)
    assert "holds(kernel, tile)" in (tmp_path / "gpu" / "tile" / "tile_kernel.h").read_text()


def test_threads_of_nine_tiles(tmp_path):
    file = tmp_path / "threads.csv"
    lines = ["rows,cols,threads,us,tflops,registers,spilled,occupancy,nbad"]
    for threads, rate in ((64, 1), (128, 4), (256, 3), (512, 2)):
        lines.append(f"32,32,{threads},10,{rate},40,{8 if threads == 64 else 0},0.5,0")
    file.write_text("\n".join(lines) + "\n")
    text = "\n".join(experiments_threads.every_pair(experiments_threads.read(file)))
    assert "| 64 threads | 1.0 (50%, spills) |\n| 128 threads | **4.0** (50%) |\n| 256 threads | 3.0 (50%) |" in text
    assert "not measured yet" in "\n".join(experiments_threads.every_pair([]))
    file.write_text("\n".join([*lines, "8,8,64,10,1,40,0,0.5,3"]) + "\n")
    with pytest.raises(ValueError, match="64 threads computed 8 x 8 tiles wrong"):
        experiments_threads.read(file)


# Stands in for ncu: writes its log for gpu_driver, which repeats a call of two kernels, and for cublas_batches, whose
# first call is followed by a check.
NCU = """#!{python}
import csv, sys
words = sys.argv[1:]
ours = [("vbgemm_t128_light_f32(P)", "(10, 1)", 4000, 50, 40), ("vbgemm_t256_heavy_f32(P)", "(9, 1)", 1000, 25, 20)]
theirs = [("void gemm<8, (bool)0>(P)", "(2, 1)", 3000, 20, 10), ("void gemm<8, (bool)0>(P)", "(2, 1)", 1000, 20, 6)]
checks = [("<unnamed>::count_wrong(Size)", "(1, 1)", 9000, 99, 99)]
launches = 2 * ours if "--filter" in words else theirs + checks
names = words[words.index("--metrics") + 1].split(",")
with open(words[words.index("--log-file") + 1], "w") as log:
    log.write("==PROF== Connected\\n")
    out = csv.writer(log, quoting=csv.QUOTE_ALL)
    out.writerow(["ID", "Kernel Name", "Grid Size", "Metric Name", "Metric Unit", "Metric Value"])
    for i, (kernel, grid, ns, theoretical, achieved) in enumerate(launches):
        for name, value in zip(names, ("128", "1,024", f"{{ns:,}}", theoretical, achieved)):
            out.writerow([i, kernel, grid, name, "", value])
"""


def test_profiled_occupancy(tmp_path, monkeypatch):
    ncu, cases, output = tmp_path / "ncu", tmp_path / "e.case", tmp_path / "occupancy.csv"
    ncu.write_text(NCU.format(python=sys.executable))
    ncu.chmod(0o755)
    experiments.cases(cases, part=["occupancy"])
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["profile_occupancy.py", cases, output, "--driver", "gpu_driver", "--cublas-batches", "cublas_batches"]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    profile_occupancy.main()
    rows = list(read_csv(profile_occupancy.Profiled, output))
    first = experiments.PROFILED[0]
    mine = {(row.kernel, row.launches, row.us) for row in rows if (row.workload, row.peer) == (first, "auto")}
    assert mine == {("vbgemm_t128_light_f32", 1, 4), ("vbgemm_t256_heavy_f32", 1, 1)}
    (cublas,) = (row for row in rows if (row.workload, row.peer) == (first, profile_occupancy.CUBLAS))
    assert cublas.kernel == "gemm<8, (bool)0>"
    assert (cublas.launches, cublas.us, cublas.registers, cublas.achieved) == (2, 4, 1024, pytest.approx(0.09))
    text = "\n".join(experiments_occupancy.profiled(rows))
    assert "| auto | 45%, 36% | 45%, 36% |" in text
    assert "| cuBLAS loop | 20%, 9% | 20%, 9% |" in text
    assert {row.peer for row in rows} == {"auto", "uniform", *experiments_batches.PAPERS, profile_occupancy.CUBLAS}


def test_sections_that_run_alone(tmp_path):
    """One section of experiments.sh needs its own program alone."""
    program = tmp_path / "thread_tiles"
    program.write_text('#!/bin/sh\necho ran > "$1"\n')
    program.chmod(0o755)

    def run(*sections):
        command = [
            "sh",
            Path(experiments.__file__).with_suffix(".sh"),
            "none.case",
            tmp_path,
            tmp_path / "out",
            *sections,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("threads").returncode == 0
    assert (tmp_path / "out" / "papers_threads.csv").read_text() == "ran\n"
    left_out = run("tsm2")
    assert (left_out.returncode, "tsm2: left out" in left_out.stdout) == (0, True)
    unknown = run("thread")
    assert (unknown.returncode, "no section thread;" in unknown.stderr) == (2, True)
