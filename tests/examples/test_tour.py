"""The notebook runs from its first cell to the last."""

from pathlib import Path

import nbformat
from nbconvert.preprocessors import ExecutePreprocessor

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def test_every_cell_runs_and_shows_something(tmp_path: Path):
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "outputs are not committed: they would grow old"
    ExecutePreprocessor(timeout=300).preprocess(book, {"metadata": {"path": str(tmp_path)}})
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code)
    shown = [output.get("text", "") for cell in code for output in cell.outputs]
    assert any("neuroshard" in text and "vs lpt" in text for text in shown)
