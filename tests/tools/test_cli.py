"""python -m jax_vbgemm, as a user runs it."""

import re
import subprocess
import sys

import pytest
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm.__main__ import main
from jax_vbgemm._src.native.backends import BACKENDS


def test_backends(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "cpu" in out
    assert BACKENDS["rocm"].module or "rocm  absent: not built" in out


@pytest.mark.parametrize("device", ["h100", "mi210", "cpu"])
def test_plan_of_a_file(device, tmp_path, capsys):
    file = tmp_path / "shapes.txt"
    file.write_text("16 32 128\n64 64 64\n\n256 256 64\n")
    assert main(["plan", str(file), "--device", device, "--planner", "coordinated"]) == 0
    out = capsys.readouterr().out
    assert device in out
    assert "coordinated" in out


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("1 2\n", [], "shapes.txt, line 1: '1 2' must be three or four integers"),
        ("1 2 3.5\n", [], "line 1: '1 2 3.5' must be three or four integers"),
        ("1 2 -3\n", [], "line 1: '1 2 -3': k = -3: sizes must be non-negative"),
        ("1 2 3\n", ["--device", "h1000"], "h1000"),
        ("1 2 3\n", ["--planner", "best"], "best"),
        ("1 2 3\n", ["--dtype", "int32"], "int32"),
        ("1 2 3\n", ["--dtype", "foo"], "dtype: unknown name 'foo'"),
    ],
)
def test_bad_input_is_explained(text, arguments, message, tmp_path, capsys):
    file = tmp_path / "shapes.txt"
    file.write_text(text)
    with pytest.raises(SystemExit):
        main(["plan", str(file), *arguments])
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ([], {}),
        (["--dtype", "bf16"], {"dtype": "bfloat16"}),
        (["--dtype", "f32", "--precision", "highest"], {"precision": "highest"}),
    ],
)
def test_comments_batches_and_precision(options, same, tmp_path, capsys):
    file = tmp_path / "shapes.txt"
    file.write_text("# M N K batch\n16 32 128  # one\n\n64 64 64 4\n")
    assert main(["plan", str(file), "--device", "h100", *options]) == 0
    assert capsys.readouterr().out == f"{vb.plan([(16, 32, 128), (64, 64, 64, 4)], device='h100', **same)}\n"


def test_dtype_and_precision_in_the_file(tmp_path, capsys):
    file = tmp_path / "shapes.txt"
    file.write_text("precision highest  # of all products\n16 32 128\n")
    assert main(["plan", str(file), "--device", "h100"]) == 0
    assert capsys.readouterr().out == f"{vb.plan([(16, 32, 128)], device='h100', precision='highest')}\n"
    file.write_text("dtype bf16\n16 32 128\ndtype f64\n")
    with pytest.raises(SystemExit):
        main(["plan", str(file), "--device", "h100"])
    assert "shapes.txt, line 3: 'dtype f64' must be one 'dtype NAME'" in capsys.readouterr().err


def test_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "shapes.txt").write_text("100 100 64\n")
    assert main(["plan", str(tmp_path / "shapes.txt"), "--device", "h100", "--plot", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "shapes.txt").write_text("100 100 64\n")
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path / "shapes.txt"), "--device", "h100", "--plot", "p.png"])
    assert "Plan.plot needs matplotlib: pip install matplotlib" in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"jax_vbgemm {vb.__version__}\n"


def test_a_byte_order_mark(tmp_path, capsys):
    file = tmp_path / "shapes.txt"
    file.write_text("16 32 128\n", encoding="utf-8-sig")
    assert main(["plan", str(file), "--device", "h100", "--planner", "coordinated"]) == 0
    assert "coordinated" in capsys.readouterr().out


def test_a_file_that_is_no_text(tmp_path, capsys):
    (tmp_path / "shapes.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path / "shapes.bin")])
    assert "shapes.bin is not a text file" in capsys.readouterr().err


def test_the_demo(capsys, monkeypatch):
    pytest.importorskip("rich")
    from jax_vbgemm._src.tools import demo

    smallest = dict([min(demo.blocks().items(), key=lambda item: item[1][0].n)])  # all nine take half a minute
    monkeypatch.setattr(demo, "blocks", lambda: smallest)
    assert main(["demo"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"One call per block is [\d.]+ times as fast as XLA's loop of dots forward", out)
    assert out.endswith("right to rounding.")


@pytest.mark.parametrize("batch", ["0", "-1"])
def test_a_demo_needs_an_image(batch, capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--batch", batch])
    assert "--batch: must be at least 1" in capsys.readouterr().err


def test_a_missing_file(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "nowhere.txt"])
    assert "nowhere.txt" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", slow_except([[], ["--help"]], [[]]), ids=["backends", "help"])
@pytest.mark.slow
def test_a_reader_that_has_gone(arguments):
    command = [sys.executable, "-m", "jax_vbgemm", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate()
    assert errors == ""
    # As of a program that SIGPIPE ended. (argparse lets a failed write of its help pass, where output is not buffered.)
    assert process.returncode == 141 or arguments == ["--help"]
