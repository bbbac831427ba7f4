"""Commands are called in a folder of their own."""

import pytest
from evaluation_toys import toy_tasks


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current folder, in which there is a task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(toy_tasks(1)[0].to_json())
    return tmp_path
