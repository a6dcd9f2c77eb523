"""The file of tuned plans, which alone determines the plans of `auto` where it has an entry."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec, plan_problems, tuned
from jax_vbgemm._src.planner.registry import REGISTERED
from jax_vbgemm._src.problem import problems_of

H100 = device_spec("h100")
SHAPES = problems_of([(64, 64, 8), (10, 20, 30)])
CATALOGUE = catalogue_for("float32", H100)


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "tuned.json"
    monkeypatch.setenv("VBGEMM_CACHE", str(path))
    return path


def keep(file, winner, problems=SHAPES, device=H100, catalogue=CATALOGUE):
    tuned.store(file, tuned.key_of(problems, device, catalogue), {"winner": winner})


def test_auto_follows_the_file_as_it_is(file):
    modelled = plan_problems(SHAPES, "float32", H100)
    for winner, choice in (("uniform small/256", ("small", 256)), ("uniform huge/128", ("huge", 128))):
        keep(file, winner)
        plan = plan_problems(SHAPES, "float32", H100)
        assert plan.choices == (choice,) * 2
        assert plan.planner == "auto"
        assert f"took {winner}, measured by autotune" in plan.notes
    assert plan_problems(SHAPES, "float32", H100, tuned=False).choices == modelled.choices
    assert plan_problems(SHAPES, "float32", H100, "sort_split").planner == "sort_split"
    file.unlink()
    assert plan_problems(SHAPES, "float32", H100).choices == modelled.choices


SEARCHES = ["makespan", "makespan only t128_light", "makespan without small/256"]


@pytest.mark.parametrize(
    "winner",
    [
        *SEARCHES,
        *(name for each in REGISTERED for name in each.by_file_name),
    ],
)
def test_planners_by_name(winner, file):
    keep(file, winner)
    plan = plan_problems(SHAPES, "float32", H100)
    assert f"took {winner}" in plan.notes[-1]
    assert plan.catalogue == CATALOGUE


def test_a_winner_holds_for_its_problems_device_and_kind_only(file):
    keep(file, "uniform small/256")

    def follows(problems, kind="float32", device=H100):
        return "measured" in plan_problems(problems, kind, device).notes[-1]

    assert follows(SHAPES)
    assert follows((*SHAPES, vb.Problem(0, 5, 5), vb.Problem(5, 5, 0)))  # these never reach a kernel
    assert not follows(SHAPES[::-1])
    assert not follows((SHAPES[0], vb.Problem(10, 20, 30, transpose_a=True)))
    assert not follows(SHAPES, "tf32")
    assert not follows(SHAPES, device=device_spec("a100"))
    assert not follows(SHAPES, device=H100.with_units(114))


def test_entries_stay(file):
    keep(file, "makespan")
    keep(file, "sort_split", SHAPES[:1])
    assert len(json.loads(file.read_text())["entries"]) == 2
    left = {path.name for path in file.parent.iterdir()} - {f".{file.name}.lock"}
    assert left == {file.name}  # no temporary file


@pytest.mark.slow
def test_concurrent_writers_lose_nothing(file):
    program = """if True:
        import sys
        from pathlib import Path
        from jax_vbgemm._src.planner import tuned
        for index in range(40):
            tuned.store(Path(sys.argv[1]), f"{sys.argv[2]} {index}", {"winner": "makespan"})
    """
    command = [sys.executable, "-c", program, str(file)]
    writers = [subprocess.Popen([*command, str(name)]) for name in range(3)]
    assert [writer.wait() for writer in writers] == [0] * 3
    assert len(json.loads(file.read_text())["entries"]) == 120


@pytest.mark.parametrize("kind", ["directory", "device", "fifo", "below a file"])
def test_what_is_no_file_is_named(kind, tmp_path, monkeypatch):
    path = tmp_path / "tuned.json"
    if kind == "directory":
        path.mkdir()
    elif kind == "device":
        path = Path(os.devnull)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_text("")
        path /= "tuned.json"
    monkeypatch.setenv("VBGEMM_CACHE", str(path))
    for use in (tuned.check_file, lambda file: tuned.store(file, "key", {"winner": "makespan"})):
        with pytest.raises(OSError, match=f"VBGEMM_CACHE: {path}"):
            use(path)
    if kind != "below a file":
        with pytest.raises(
            OSError, match=f"VBGEMM_CACHE: {path} is (a directory|not a regular file): name a file, or 'off'"
        ):
            plan_problems(SHAPES, "float32", H100)
    assert path.name != "null" or path.is_char_device()


def test_an_empty_file_is_a_fresh_start(file):
    file.parent.mkdir()
    file.touch()
    assert "measured" not in plan_problems(SHAPES, "float32", H100).notes[-1]
    keep(file, "sort_split")
    assert "took sort_split" in plan_problems(SHAPES, "float32", H100).notes[-1]


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.setenv("VBGEMM_CACHE", "off")
    assert tuned.cache_file() is None
    monkeypatch.delenv("VBGEMM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuned.cache_file() == tmp_path / "jax_vbgemm" / "autotune.json"


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 0, "entries": {}}', '{"version": 1, "entries": {"a": {}}}'])
def test_another_file_is_an_error_that_names_it(text, file):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ValueError, match=r"VBGEMM_CACHE: .*tuned\.json is not a file of tuned plans.*delete it"):
        plan_problems(SHAPES, "float32", H100)


@pytest.mark.parametrize("winner", ["uniform enormous/256", "best"])
def test_an_unknown_winner_is_an_error(winner, file):
    keep(file, winner)
    with pytest.raises(ValueError, match=f"VBGEMM_CACHE: .*names the planner '{winner}'"):
        plan_problems(SHAPES, "float32", H100)
