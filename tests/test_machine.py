"""Versions without imports, and the commit of the right checkout."""

from __future__ import annotations

import platform
import subprocess

import pytest

import shardgym
from shardgym import machine


def git(folder, *arguments):
    options = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *options, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A repository with one committed Python file."""
    git(tmp_path, "init")
    (tmp_path / "module.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_versions_name_python_and_what_is_installed():
    found = machine.versions()
    assert found["python"] == platform.python_version()
    assert found["shardgym"] == shardgym.__version__
    assert "numpy" in found


def test_commit_of_a_clean_and_of_a_modified_checkout(checkout):
    clean = machine.commit.__wrapped__(checkout)
    assert len(clean) == 40
    (checkout / "module.py").write_text("x = 2\n")
    assert machine.commit.__wrapped__(checkout) == clean + "+"


def test_a_package_inside_somebody_elses_checkout_has_no_commit(checkout):
    installed = checkout / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "module.py").write_text("")
    assert machine.commit.__wrapped__(installed) == ""


def test_no_checkout_and_no_git_give_no_commit(tmp_path, checkout, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    assert machine.commit.__wrapped__(outside) == ""
    monkeypatch.setenv("PATH", "")
    assert machine.commit.__wrapped__(checkout) == ""
