"""The README's examples run as they stand there, and its links lead somewhere."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, README.name, "exec"), names)
    assert [c.shape for c in names["Cs"]] == [(5, 3), (100, 40)]
    assert [grad.shape for grad in names["grads"]] == [weight.shape for weight in names["weights"]]


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
