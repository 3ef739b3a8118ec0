"""The rules of the house that a machine can hold: which way imports point, what starts fast, what files may contain."""

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "smelt").rglob("*.py"))

# A room may import itself and what stands before it. launch stands on train, and plan on launch's calibrations.
ORDER = [
    {"errors"},
    {"files"},
    {"spec"},
    {"variants", "trunk"},
    {"papers", "budget"},
    {"match"},
    {"grid"},
    {"experiment"},
    {"ledger"},
    {"fit"},
    {"foreign"},
    {"parallel"},
    {"data", "model"},
    {"train", "own"},
    {"launch"},
    {"cores"},
    {"plan", "compare", "analysis", "upcycle"},
    {"prediction"},
    {"committed"},
    {"fitted"},
    {"report"},
    {"terminal"},
    {"cli", "__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
# One library in one place.
HOMES = {
    "flax": {"model"},
    "optax": {"train"},
    "orbax": {"train"},
    "grain": {"data", "launch"},  # launch imports it ahead of time
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "tyro": {"cli"},
    "rich": {"terminal"},
    "tokenizers": {"data"},
}
EXAMPLES = [path for path in SOURCES if ">>>" in path.read_text()]
LIGHT = ("spec", "variants", "trunk", "budget", "match", "grid", "ledger", "fit", "foreign", "plan", "own", "cli")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "smelt").parts[0].removesuffix(".py")


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_one_way_and_libraries_stay_at_home(path):
    room = room_of(path)
    if room == "__init__":
        assert imported(path) == []
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "smelt" and len(parts) > 1 and parts[1] in RANK:
            assert parts[1] == room or RANK[parts[1]] <= RANK[room], f"{room} imports {parts[1]}, which stands above it"
        if parts[0] in HOMES:
            assert room in HOMES[parts[0]], f"{parts[0]} is imported in {room}, its home is {HOMES[parts[0]]}"


def test_fit_knows_nothing_of_training():
    for path in (ROOT / "smelt" / "fit").rglob("*.py"):
        inside = {name.split(".")[1] for name in imported(path) if name.startswith("smelt.")}
        assert inside <= {"fit", "errors"}, f"{path.name} imports {inside}"


@pytest.mark.smoke
@pytest.mark.parametrize("room", LIGHT)
def test_planning_and_fitting_start_without_jax(room):
    heavy = ("jax", "flax", "optax", "orbax", "grain", "pandas", "matplotlib", "tokenizers", "pyarrow")
    check = f"import sys, smelt.{room}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_module_opens_with_a_sentence():
    for path in SOURCES:
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert docstring, f"{path.name} has no docstring"


@pytest.mark.smoke
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_examples_in_docstrings_run(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_no_registry_host_and_no_path_of_a_machine_is_written_down():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    words = ("".join(("py", "pi.org")), "".join(("python", "hosted")), "".join(("npm", "js.org")), "/" + "work/")
    for name in listed:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".csv", ".json", ".html", ""} and path.is_file():
            text = path.read_text(errors="ignore")
            found = [word for word in words if word in text]
            assert not found, f"{name} contains {found}"


def test_notebooks_define_nothing():
    for path in (ROOT / "notebooks").glob("*.py"):
        tree = ast.parse(path.read_text())
        defined = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
        assert not defined, f"{path.name} defines something at line {defined[0].lineno}"
