"""What the build of the site cannot see: code that it does not run, and public names that no API page has."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(page.relative_to(DOCS) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_python_is_run_by_the_build(page):
    """Only cells of pages with this header are run; a plain block would show code that nobody tries."""
    text = (DOCS / page).read_text()
    assert "```python" not in text, f"docs/{page} has a Python block that is not a {{code-cell}}"
    if "{code-cell}" in text:
        assert text.startswith("---\nfile_format: mystnb\n"), f"docs/{page} lacks the header of docs/quickstart.md"


@pytest.mark.parametrize("module", ["jax_vbgemm", "jax_vbgemm.flax.nnx", "jax_vbgemm.flax.linen", "jax_vbgemm.optax"])
def test_every_public_name_has_an_entry(module):
    pytest.importorskip(module.split(".")[1] if "." in module else "jax")
    documented, current = set(), ""
    for page in sorted((DOCS / "api").glob("*.md")):
        for directive, name in re.findall(r"^\.\. (\w+):: ([\w.]+)", page.read_text(), re.MULTILINE):
            if directive == "currentmodule":
                current = name
            elif current == module:
                documented.add(name)
    imported = importlib.import_module(module)
    # The names that the package exports: `from x import y as y`, or defined in the module itself.
    source = inspect.getsource(imported)
    exported = {name for name, alias in re.findall(r"import (\w+) as (\w+)", source) if name == alias}
    own = {
        name
        for name, value in vars(imported).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module
    }
    public = {
        name for name in exported | own if not name.startswith("_") and not inspect.ismodule(getattr(imported, name))
    }
    assert public
    assert documented == public
