"""The README's examples run as they stand there."""

import re
from pathlib import Path

from jax_vbgemm._src.tools import tune

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.setenv("VBGEMM_CACHE", str(tmp_path / "tuned.json"))
    monkeypatch.setattr(tune, "measure", lambda planners, *_: [1.0] * len(planners))  # measuring takes seconds
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, README.name, "exec"), names)
    assert [c.shape for c in names["Cs"]] == [(5, 3), (100, 40)]
    assert [grad.shape for grad in names["grads"]] == [weight.shape for weight in names["weights"]]
    assert names["exported"].platforms == ("cpu", "cuda")
