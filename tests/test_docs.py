"""Mistakes that the build of the site cannot find: code that it does not run, and public names without an API page."""

import inspect
import re
from pathlib import Path

import pytest
from test_public import PACKAGES, package

from jax_vbgemm._src.planner.registry import REGISTERED

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(page.relative_to(DOCS) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_python_is_run_by_the_build(page):
    """The build runs only cells of pages with this header, so that code in plain blocks would never be run."""
    text = (DOCS / page).read_text()
    assert "```python" not in text, f"docs/{page} has a Python block that is not a {{code-cell}}"
    if "{code-cell}" in text:
        assert text.startswith("---\nfile_format: mystnb\n"), f"docs/{page} lacks the header of docs/quickstart.md"


def test_cited_decisions_exist():
    """Comments cite "docs/design/latency.md, L12": a page, and a key on it."""
    cited = set()
    for folder in ("csrc", "jax_vbgemm", "benchmarks", "tests/native", "tools"):
        for file in (DOCS.parent / folder).rglob("*"):
            if file.suffix in (".h", ".cc", ".cu", ".def", ".py", ".toml"):
                text = re.sub(r"\n\s*(?://|#)?\s*", " ", file.read_text())
                cited |= set(re.findall(r"docs/design/([a-z-]+)\.md(?:, ([A-Z]\d+))?", text))
    assert len(cited) > 15
    missing = []
    for page, key in sorted(cited):
        text = (DOCS / "design" / f"{page}.md").read_text()
        if key and f"({key.lower()})=" not in text:
            missing.append(f"{page}.md, {key}")
    assert not missing


def test_every_room_has_a_row_of_tests():
    """The table of the building page: each room, and each folder of tests, and none that is not there."""
    root, page = DOCS.parent, (DOCS / "internals" / "building.md").read_text()
    _, _, table = page.partition("| change in | tests that see it |\n")
    rows = [line.split("|")[1:3] for line in table.partition("\n\n")[0].splitlines()[1:]]
    rooms, seen = ({name.split()[0] for row in rows for name in re.findall(r"`([^`]+)`", row[i])} for i in (0, 1))
    source = root / "jax_vbgemm" / "_src"
    assert {path.name for path in source.iterdir() if path.is_dir() and (path / "__init__.py").exists()} <= rooms
    missing = [name for name in rooms if not any(list(folder.glob(name)) for folder in (source, root))]
    assert missing == []
    folders = {path.name for path in (root / "tests").iterdir() if path.is_dir() and list(path.glob("test_*.py"))}
    assert {name.split("/")[0] for name in seen} - {"test_docs.py", "test_readme.py"} == folders


@pytest.mark.parametrize("module", PACKAGES)
def test_every_public_name_has_an_entry(module):
    found = package(module)
    documented, current = set(), ""
    for page in sorted((DOCS / "api").glob("*.md")):
        for directive, name in re.findall(r"^\.\. (\w+):: ([\w.]+)", page.read_text(), re.MULTILINE):
            if directive == "currentmodule":
                current = name
            elif current == module:
                documented.add(name)
    public = {
        name for name in found.__all__ if not inspect.ismodule(getattr(found, name))
    }  # they have pages of their own
    assert public or module == "jax_vbgemm.flax"  # which holds modules alone
    assert documented == public


def test_the_guide_describes_every_planner():
    """In text, under its heading, which says as well what the planners' options and tensor cores are about."""
    _, _, after = (DOCS / "guides" / "planners.md").read_text().partition("## The planners\n")
    text = after.partition("\n## ")[0]
    for each in REGISTERED:
        assert f'- `"{each.name}"` (`{type(each.planner).__name__}`)' in text
    assert "](../api/planning.md)" in text
    assert "`tensor=` overrides" in text
