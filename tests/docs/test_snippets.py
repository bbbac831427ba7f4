"""Every Python and console snippet of the README and the docs runs, in order, page by page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Packages of pages that are about them, and that no extra can bring.
NEEDED = {"torchrec.md": "torchrec.modules"}

pytestmark = [pytest.mark.repository, pytest.mark.measured]


def script_of(page: Path) -> str:
    """Join the snippets of a page into one Python script; console lines that start with `$ ` become calls."""
    parts = ["import subprocess"]
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            parts.append(text)
        else:
            commands = re.findall(r"^\$ ((?:.*\\\n)*.*)", text, re.MULTILINE)
            parts += [f"subprocess.run({command!r}, shell=True, check=True)" for command in commands]
    return "\n".join(parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path):
    """In an empty folder, with the commands of this environment."""
    if page.name in NEEDED:
        pytest.importorskip(NEEDED[page.name], reason=f"{page.name} is for those who have it")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    (tmp_path / "page.py").write_text(script_of(page))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_links_between_pages_lead_somewhere():
    """Relative links in the README and the docs name files that exist."""
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
