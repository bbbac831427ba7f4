"""The pages of the site, for mkdocs: the README, all files that it leads to, and the public API.

Pages keep their places in the repository, so links between them are the same there and on the site. A link that leads
nowhere, or to a heading that is not there, fails the build. mkdocs calls the functions `on_...` (see `mkdocs.yml`).
"""

import ast
import os
import re
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)[^)]*\)")
#: Packages whose `__all__` is for users. What `shardgym` has is on its own page alone.
PACKAGES = (
    "shardgym", "shardgym.costs", "shardgym.envs", "shardgym.evaluation", "shardgym.leaderboard",
    "shardgym.tasks.suites", "shardgym.tables.pools", "shardgym.torchrec", "shardgym.training",
    "shardgym.evaluation.conformance", "neuroshard", "neuroshard.plus",
)  # fmt: skip


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Return the theme's files and the pages of the site, in place of the documents' folder that mkdocs looks into."""
    found = Files([file for file in files if file.src_dir != config.docs_dir])
    waiting = ["README.md", *config.extra_css]
    while waiting:
        name = waiting.pop()
        if found.get_file_from_path(name) is not None or not (ROOT / name).is_file():
            continue
        found.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
        if name.endswith(".md"):
            text = (ROOT / name).read_text(encoding="utf-8")
            waiting += [os.path.normpath(Path(name).parent / unquote(target)) for target in LINK.findall(text)]
    shown: set[str] = set()
    for package in PACKAGES:
        homes = {_home(package, name) for name in _literal(package, "__all__") if not name.startswith("__")}
        by_name = sorted(homes - shown, key=lambda home: home.rpartition(".")[2])
        text = f"# {package}\n\n" + "\n\n".join(f"::: {home}" for home in by_name)
        shown.update(homes)
        found.append(File.generated(config, f"api/{package}.md", content=text))
    return found


def on_page_content(html: str, /, *, page: Page, **_others: object) -> str:
    """Lead to what `tox -e site` puts beside pages: notebooks that ran, and boards with charts."""
    html = html.replace('.ipynb"', '.html"')
    if re.fullmatch(r"leaderboards/[^/]+/README.md", page.file.src_uri):
        html += '<p><a href="board.html">Sort, filter and chart these rows</a></p>'
    return html


def _syntax(module: str) -> list[ast.stmt]:
    """Read the statements of a module, those for type checkers among them, without importing it."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    statements = ast.parse(source.read_text(encoding="utf-8")).body
    for statement in list(statements):
        if isinstance(statement, ast.If):
            statements += statement.body
    return statements


def _literal(module: str, variable: str) -> list[str]:
    """Read a variable of a module that is written out."""
    for statement in _syntax(module):
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == variable:
            return list(ast.literal_eval(statement.value))
    raise ValueError(f"{module} has no {variable}")


def _home(module: str, name: str) -> str:
    """Return where a name is defined that a module may have imported: a package may have a module of the same name."""
    for statement in _syntax(module):
        if isinstance(statement, ast.ImportFrom) and name in {alias.asname or alias.name for alias in statement.names}:
            return _home(str(statement.module), name)
    return f"{module}.{name}"
