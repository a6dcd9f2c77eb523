"""The documentation site: `python -m sphinx -W --keep-going -b html docs build/site`, with the extra `docs`.

Pages are MyST Markdown. A page that has code begins with the header of docs/quickstart.md; the build runs its cells and
shows what they print, and an exception in one fails the build.
"""

import inspect
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import sphinx.util.inspect

import jax_vbgemm

project = "jax_vbgemm"
author = "the authors of jax_vbgemm"
release = version = jax_vbgemm.__version__
html_title = f"jax_vbgemm {release}"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
]
html_theme = "sphinx_book_theme"
html_theme_options: dict[str, Any] = {"show_navbar_depth": 1, "home_page_in_toc": True}
with (Path(__file__).parents[1] / "pyproject.toml").open("rb") as file:
    urls = tomllib.load(file)["project"].get("urls", {})
if "Repository" in urls:
    html_theme_options["icon_links"] = [{"name": "Repository", "url": urls["Repository"], "icon": "fa-solid fa-code"}]
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings give shapes, dtypes and errors in prose; most annotations of arguments are Any.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "py:obj"  # in docstrings `name` is a link where there is such a name
napoleon_google_docstring = True
napoleon_numpy_docstring = False
copybutton_exclude = ".linenos, .gp, .go"

# Without a network the site is built without links into other projects' pages.
intersphinx_mapping = (
    {"python": ("https://docs.python.org/3", None), "jax": ("https://docs.jax.dev/en/latest", None)}
    if os.environ.get("READTHEDOCS")
    else {}
)

nb_execution_mode = "force"
nb_execution_excludepatterns = ["gallery/*"] if os.environ.get("VBGEMM_DOCS_GALLERY") == "off" else []
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
os.environ["PYTHONPATH"] = str(Path(jax_vbgemm.__file__).parents[1])  # the kernels' package is this one
os.environ["VBGEMM_CACHE"] = str(Path(tempfile.mkdtemp()) / "autotune.json")  # nobody's measurements, and none kept
os.environ.setdefault("JAX_PLATFORMS", "cpu")


class Written(str):
    """A default value as a signature shows it."""

    __repr__ = str.__str__


def shown_default(value: Any) -> Any:
    """The default value of an argument, a dtype by its name and a function as `...`."""
    if value is inspect.Parameter.empty or not callable(value):
        return value
    return Written(value.dtype.name if hasattr(value, "dtype") else "...")


def signature_of_layer(app: Any, what: str, name: str, layer: Any, *_: Any) -> tuple[str, None] | None:
    """The arguments of a Flax layer. By itself autodoc shows `(*args, **kwargs)`, of nnx's metaclass, or also `parent`
    and `name`, which every module of linen has."""
    del app
    if what != "class" or not name.startswith("jax_vbgemm.flax."):
        return None
    arguments = [
        argument.replace(default=shown_default(argument.default))
        for argument in inspect.signature(layer.__init__).parameters.values()
        if argument.name not in ("self", "parent", "name")
    ]
    return sphinx.util.inspect.stringify_signature(inspect.Signature(arguments), show_annotation=False), None


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", signature_of_layer)
