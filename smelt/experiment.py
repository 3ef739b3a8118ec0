"""A name or a path -> an Experiment: a Python file whose docstring asks the question and whose RUNS is a Grid.

A committed experiment is named (`quickstart` is experiments/quickstart.py beside the package, or in the working
folder); a user's own is given by its path. The file is imported, never parsed, and as Python does it once a process
as long as its text is the same, so that what it defines is one class however often it is asked for.
"""

import os
import sys
import traceback
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType

from smelt.errors import BadInput
from smelt.files import digest, read_json, write_json
from smelt.grid import Grid

MEMORY = "experiment.json"
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    path: Path
    docstring: str
    grid: Grid

    @property
    def folder(self) -> Path:
        """Where its runs are written."""
        return runs_root() / self.name

    def remember(self) -> None:
        """Note in the folder which file its runs are of, so that the name alone finds it again. Raises BadInput where
        the folder holds runs of another file of this name."""
        other = remembered(self.name)
        if other is not None and other != self.path:
            raise BadInput(f"{self.folder} holds the runs of {other}: rename {self.path} or give another SMELT_RUNS")
        write_json(self.folder / MEMORY, {"path": os.path.relpath(self.path, self.folder)})


def runs_root() -> Path:
    """`runs/` of the working folder, or SMELT_RUNS."""
    return Path(os.environ.get("SMELT_RUNS", "runs"))


def remembered(name: str) -> Path | None:
    """The file whose runs lie under this name, where it is still there."""
    memory = runs_root() / name / MEMORY
    if not memory.exists():
        return None
    path = (memory.parent / read_json(memory)["path"]).resolve()
    return path if path.is_file() else None


def names() -> list[str]:
    """The committed experiments that can be seen from here."""
    found = {path.stem for folder in _folders() for path in folder.glob("*.py") if not path.stem.startswith("_")}
    return sorted(found)


def _folders() -> list[Path]:
    return [folder for folder in dict.fromkeys([Path.cwd() / "experiments", ROOT / "experiments"]) if folder.is_dir()]


def load(name_or_path: str) -> Experiment:
    """Import an experiment. Raises BadInput for an unknown name, a file that raises (with its line), one without RUNS,
    or without a docstring."""
    path = _find(name_or_path)
    imported = _imported(path)
    grid = getattr(imported, "RUNS", None)
    if not isinstance(grid, Grid):
        raise BadInput(f"{path} has no RUNS that is a smelt.grid.Grid: end it with RUNS = grid.isoflop(...)")
    if not imported.__doc__:
        raise BadInput(f"{path} has no docstring: state the question and the prediction before the first run")
    return Experiment(name=path.stem, path=path, docstring=imported.__doc__.strip(), grid=grid)


def module(name_or_path: str) -> ModuleType:
    """An experiment's file as a module, for another experiment that shares its ladder or recipe."""
    return _imported(_find(name_or_path))


def _imported(path: Path) -> ModuleType:
    if path.suffix != ".py":
        raise BadInput(f"{path} cannot be imported: give a file that ends in .py")
    source = path.read_bytes()
    # Named by path and text: dataclasses and Flax look a class's module up by its name, and a file that was edited must
    # not give its classes to programs that were compiled for the old ones.
    name = f"smelt_experiment_{path.stem}_{digest([str(path), source.hex()])}"
    if name in sys.modules:
        return sys.modules[name]
    imported = sys.modules[name] = ModuleType(name)
    imported.__file__ = str(path)
    try:
        _execute(source, path, imported)
    except BaseException:
        del sys.modules[name]
        raise
    return imported


def _execute(source: bytes, path: Path, imported: ModuleType) -> None:
    """Run a file's text in a module; not through a loader, whose bytecode is told from an edit of the same second and
    size by nothing."""
    try:
        compiled = compile(source, str(path), "exec", dont_inherit=True)
        vars(imported)["__source__"] = decode_source(source)  # kept for fingerprints: the file may be edited
        exec(compiled, vars(imported))
    except BadInput:
        raise
    except SyntaxError as error:
        raise BadInput(f"{error.filename or path}:{error.lineno or 1}: {error.msg}: mend the file") from None
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(
            f"{path}:{lines[-1] if lines else 1} raised {what}; mend the file (python {path} shows the traceback)"
        ) from error


def _find(name_or_path: str) -> Path:
    if name_or_path.endswith(".py") or os.sep in name_or_path:
        path = Path(name_or_path)
        if not path.is_file():
            raise BadInput(f"no experiment file {name_or_path}")
        return path.resolve()
    for folder in _folders():
        if (path := folder / f"{name_or_path}.py").is_file():
            return path
    if path := remembered(name_or_path):
        return path
    raise BadInput(f"unknown experiment {name_or_path!r}: known are {', '.join(names()) or 'none'}; or give a path")
