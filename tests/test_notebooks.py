"""Notebooks draw from committed files: they run to their end, and define nothing."""

import ast
from pathlib import Path

import jupytext
import nbclient
import pytest

from smelt import committed, prediction
from tests import synthetic

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.py"))


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """The committed fits, or a synthetic quickstart where it is not committed."""
    if "quickstart" in committed.names():
        return committed.folder_of("quickstart").resolve()
    folder = tmp_path_factory.mktemp("fits")
    design = synthetic.planted_grid()
    rows = synthetic.planted_rows(design, saving=0.06)
    predicted = prediction.predict(rows, prediction.targets(design), "baseline", draws=100)
    committed.commit("quickstart", rows, "baseline", predicted=predicted, folder=folder, draws=100)
    return folder


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_its_figures(path, fits, monkeypatch):
    monkeypatch.setenv("SMELT_FITS", str(fits))
    notebook = jupytext.read(path)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert shown.count("image/svg+xml") >= 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_defines_nothing(path):
    defining = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    assert not [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, defining)]
