"""Imports go one way: each folder imports from those above it in this list, and from none below."""

import ast
from pathlib import Path

import jax_vbgemm as vb

PACKAGE = Path(vb.__file__).parent

ROOMS = [
    "_core",
    "_src.util",
    "_src.native",
    "_src.epilogue",
    "_src.problem",
    "_src.planner.tables",
    "_src.planner.tiles",
    "_src.planner.model",
    "_src.planner.plan",
    "_src.planner.search",
    "_src.planner.papers",
    "_src.planner.registry",
    "_src.planner",
    "_src.native.backends",  # plans for a device
    "_src.matmul",
    "_src.elementwise",
    "_src.scaled",
    "_src.ragged",
    "_src.matmul.scaled_choice",
    "_src.matmul.scaled_products",  # hands some products to ragged_dot
    "_src.matmul.gram",
    "_src.matmul.api",
    "_src.exchange",
    "_src.grouping",
    "_src.moe",
    "_src.networks",
    "_src.blocksparse",
    "_src.irreps",
    "_src.many_devices",
    "_src.newton_schulz",
    "_src.tools",
    "_src.flax",
    "_src.optax",
    "",
]


def room_of(module: str) -> int:
    """The index of the longest entry of the list that contains the module."""
    inside = [room for room in ROOMS if module == room or module.startswith(f"{room}.") or not room]
    return ROOMS.index(max(inside, key=len))


def imported(file: Path) -> set[str]:
    """The package's modules that a file imports anywhere, without the package's name."""
    found = set()
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []  # for the reader alone
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = node.module or ""
            for alias in node.names:
                path = PACKAGE.parent.joinpath(*parent.split("."), alias.name)
                is_module = path.with_suffix(".py").exists() or path.is_dir() or alias.name == "_core"
                found.add(f"{parent}.{alias.name}" if is_module else parent)
    return {name.partition(".")[2] for name in found if name.partition(".")[0] == PACKAGE.name}


def modules() -> dict[str, set[str]]:
    """What each module of the package imports of it."""
    result = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        result[name.removesuffix("__init__").rstrip(".")] = imported(file)
    return result


def test_every_room_has_modules():
    rooms = {room_of(module) for module in modules()} | {0}  # _core is compiled
    assert rooms == set(range(len(ROOMS)))


def test_imports_go_one_way():
    wrong = [
        f"{module} imports {other}"
        for module, others in modules().items()
        for other in others
        if room_of(other) > room_of(module)
    ]
    # What the command line and the demo show is the package as its users see it.
    assert [line for line in wrong if not line.startswith("_src.tools.")] == []


def test_no_module_imports_itself_by_others():
    graph = modules()
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in graph.get(module, ()):
                if other:  # the package itself, which re-exports
                    visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())
