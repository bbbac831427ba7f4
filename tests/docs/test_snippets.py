"""Every Python and console snippet of the README and the docs runs, in order, page by page."""

import multiprocessing
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Packages of pages that are about them, and that no extra can bring.
NEEDED = {"torchrec.md": "torchrec.modules"}

pytestmark = pytest.mark.measured

#: First lines of the script of a page: it works in a folder of its own and prints into a file there. Commands are
#: called as their entry point does, without a new interpreter for each.
START = """
def begin():
    import os, sys

    os.chdir({folder!r})
    sys.path.insert(0, {folder!r})
    for stream in (1, 2):
        os.dup2(os.open("printed.txt", os.O_WRONLY | os.O_APPEND), stream)


def shell(line):
    import shlex
    from shardgym.cli import main

    program, *arguments = shlex.split(line)
    assert program == "shardgym", line
    assert main(arguments) == 0, line


begin()
"""


def script_of(page: Path, folder: Path) -> str:
    """Join the snippets of a page into one Python script; console lines that start with `$ ` become calls."""
    parts = [START.format(folder=str(folder))]
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            parts.append(text)
        else:
            commands = re.findall(r"^\$ ((?:.*\\\n)*.*)", text, re.MULTILINE)
            parts += [f"shell({command.replace(chr(92) + chr(10), '')!r})" for command in commands]
    return "\n".join(parts)


@pytest.fixture(scope="module")
def fresh():
    """Makes processes that start from a server with the libraries of most pages loaded, instead of from nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gymnasium", "torch", "shardgym.cli.run", "shardgym.evaluation", "neuroshard"])
    return context.Process


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path, fresh, tmp_path: Path):
    """In an empty folder, in a process of its own."""
    if page.name in NEEDED:
        pytest.importorskip(NEEDED[page.name], reason=f"{page.name} is for those who have it")
    script, printed = tmp_path / "page.py", tmp_path / "printed.txt"
    script.write_text(script_of(page, tmp_path))
    printed.touch()
    process = fresh(target=runpy.run_path, args=(str(script),), kwargs={"run_name": "__main__"})
    process.start()
    process.join(timeout=300)
    process.kill()
    process.join()
    assert process.exitcode == 0, printed.read_text()[-4000:]
