"""Which files a solver is written in, and their digest: records hold it, so that a solver that has changed is told.

These are the file of its class, and the files of the same top-level package that it imports, itself or through others,
wherever the import stands. To a class in a module outside of packages belong the modules beside it that it imports.
What is not read: other packages, ShardGym among them, whose versions and commit records hold, and data such as weights,
which have digests of their own. Files are found by their text alone: nothing is imported for this, and what else was
imported before makes no difference.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Start of a digest by the rule above. Digests without a start, of older records, are those of the file of the class.
RULE = "2:"

#: An import statement, whose names may be in parentheses over several lines. The whole text is searched by this, not
#: parsed, which would take longer than making a solver: a sentence that reads like an import may add a file.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n;]+)|import[ \t]+([^\n;]+))", re.MULTILINE
)


def source_digest(cls: type[Any]) -> str:
    """Return the digest of all files that a class is written in, `RULE` first; "" where there is none."""
    files = source_files(cls)
    lines = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for name, path in sorted(files.items())]
    return RULE + hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def file_digest(cls: type[Any]) -> str:
    """Return the SHA-256 of the file that a class is defined in; "" where there is none, e.g. in a notebook."""
    try:
        return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""


def source_files(cls: type[Any]) -> dict[str, Path]:
    """Return the files that a class is written in by the names of their modules; none e.g. for one of a notebook."""
    try:
        path = Path(inspect.getfile(cls)).resolve()
        path.read_bytes()
    except (OSError, TypeError):
        return {}
    name = cls.__module__
    parts = name.split(".")
    place = path.parent if path.name == "__init__.py" else path.with_suffix("")
    if list(place.parts[-len(parts) :]) != parts:  # a script
        return {path.stem: path}
    root = Path(*place.parts[: -len(parts)])
    top = parts[0]
    in_package = (root / top).is_dir() and (root / top) in path.parents
    if not in_package and str(root) in {str(Path(folder).resolve()) for folder in sysconfig.get_paths().values()}:
        return {name: path}  # a module that is installed by itself: those beside it are of others
    files: dict[str, Path] = {}
    open_names = [name]
    while open_names:
        module = open_names.pop()
        first = module.partition(".")[0]
        is_own = first == top if in_package else first != "shardgym"
        found = _file_of(root, module) if is_own and module not in files else None
        if found is None:
            continue
        files[module] = found
        is_init = found.name == "__init__.py"
        for imported in _imports(found.read_text(encoding="utf-8", errors="replace"), module, is_init):
            steps = imported.split(".")
            open_names += [".".join(steps[:length]) for length in range(1, len(steps) + 1)]
    return files


def _file_of(root: Path, module: str) -> Path | None:
    """Return the file of a module below a folder; None where there is none."""
    place = root.joinpath(*module.split("."))
    for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if path.is_file():
            return path
    return None


def _imports(text: str, module: str, is_init: bool) -> Iterator[str]:
    """Yield the full names that a module's text imports; of `from a import b` both `a` and `a.b`, a module or not."""
    for start, names, modules in _IMPORT.findall(re.sub("#[^\n]*", "", text)):
        if modules:
            yield from (name for name in re.findall(r"([\w.]+)(?:\s+as\s+\w+)?", modules) if name.strip("."))
            continue
        level = len(start) - len(start.lstrip("."))
        parts = module.split(".")
        above = parts[: len(parts) + is_init - level] if level else []
        base = ".".join([*above, *filter(None, start[level:].split("."))])
        if base:
            yield base
            yield from (f"{base}.{name}" for name in re.findall(r"(\w+)(?:\s+as\s+\w+)?", names))
