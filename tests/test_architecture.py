"""The house: a module imports only from lower floors, and rooms on one floor do not know each other."""

import ast
from pathlib import Path

import overflow_fixer

ROOT = Path(overflow_fixer.__file__).parent
FLOORS = [
    {"errors", "formats", "host", "lazy_names", "native", "plurals", "problems", "progress"},
    {"arguments"},
    {"annotations"},
    {"files", "records"},
    {"calibration", "locks", "metrics", "model_file"},
    {"sessions"},
    {"config", "graph"},
    {"flops", "inner", "patterns", "simulation"},
    {"backends", "evidence", "ranges"},
    {"rules"},
    {"planning", "verification"},
    {"layernorm_fusion", "repair"},
    {"reports", "trials"},
    {"pipeline"},
    {"zoo"},
    {"cli"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def _imported_modules(path: Path) -> list[str]:
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    return names + [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]


def _imported_at_the_top(path: Path) -> set[str]:
    """Modules, told in full, that are imported as this one is: those of annotations and inside functions are not."""
    body = [n for n in ast.parse(path.read_text()).body if isinstance(n, (ast.Import, ast.ImportFrom))]
    froms = [n for n in body if isinstance(n, ast.ImportFrom)]
    names = {alias.name for n in body if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module or "" for n in froms}
    return names | {f"{n.module}.{alias.name}" for n in froms for alias in n.names}


def _imported_rooms(path: Path) -> set[str]:
    names = _imported_modules(path)
    return {name.split(".")[1] for name in names if name.startswith("overflow_fixer.")}


def test_every_module_imports_only_from_lower_floors() -> None:
    modules = [p for p in ROOT.rglob("*.py") if _room(p) not in ("__init__", "__main__")]
    assert {_room(p) for p in modules} == set(FLOOR_OF)
    upward = [
        f"{path.relative_to(ROOT)} imports {room}"
        for path in modules
        for room in _imported_rooms(path) - {_room(path)}
        if FLOOR_OF[room] >= FLOOR_OF[_room(path)]
    ]
    assert upward == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Rooms stand on floors; within a room a reader can begin with what imports nothing, too."""
    modules = {_dotted(path): path for path in ROOT.rglob("*.py")}
    imports = {name: _imported_at_the_top(path) & set(modules) for name, path in modules.items()}
    with_nothing_left = {name for name in imports if not imports[name]}
    done: set[str] = set()
    while with_nothing_left:
        done |= with_nothing_left
        with_nothing_left = {name for name in set(imports) - done if imports[name] <= done}
    assert set(imports) - done == set()


def test_tensorrt_and_ray_are_imported_nowhere_at_the_top() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"tensorrt", "ray"}, path


def test_every_file_of_tests_runs_alone() -> None:
    """What it imports of other tests' files lies beside it or at the top, where pytest looks for any of them."""
    tests = Path(__file__).parent
    places = {path.stem: path.parent for path in tests.rglob("*.py")}
    lost = [
        f"{path.relative_to(tests)} imports {name}"
        for path in tests.rglob("*.py")
        for name in _imported_modules(path)
        if name in places and places[name] not in (tests, path.parent)
    ]
    assert not lost


def test_no_two_test_modules_have_one_name() -> None:
    """They stand in no package, so that Python would take the one for the other."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
