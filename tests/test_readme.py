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
    links = re.findall(r"\]\(([^)#:]+)[)#]", README.read_text())
    assert len(links) > 20
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_the_site_opens_with_the_table_of_the_readme():
    wanted, shown = (
        re.search(r"^\| I want .*?\n\n", page.read_text(), re.DOTALL | re.MULTILINE)[0]
        for page in (README, README.parent / "docs" / "index.md")
    )
    assert wanted == shown.replace("](guides/", "](docs/guides/")
