"""Show the way of a task: which files and functions `shardgym run` goes through for one task and one solver.

    python tools/trace_run.py [-v] [--suite tiny-v1] [--cost roofline] [--solver dim_greedy]

Counts the files and functions of shardgym, baselines and neuroshard that are called, how often the file changes from
one new function to the next, and the modules that are imported. The fewer, the sooner a newcomer has read it. Every
function counts once, where it is called first. Lambdas, comprehensions and the bodies of modules and classes do not
count. With -v, all of it is listed, in the order of the calls. Solvers work in the process of the run, as calls in
another one are not seen; lpt is one of them, as it runs with any.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import itertools
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("shardgym", "baselines", "neuroshard")


class CallTrace:
    """Notes the product's functions that are called.

    Attributes:
        functions: (file, qualified name) of each, in the order of first calls; files are relative to the repository.
    """

    def __init__(self) -> None:
        # A dictionary keeps order and finds what is known.
        self._functions: dict[tuple[str, str], None] = {}
        self._prefixes = tuple(f"{ROOT / package}/" for package in PACKAGES)

    @property
    def functions(self) -> list[tuple[str, str]]:
        """See the class."""
        return list(self._functions)

    def __enter__(self) -> CallTrace:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self._prefixes):
            return
        # Functions alone have optimised locals. What is anonymous among them is called <lambda>, <genexpr> and so on.
        if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"):
            self._functions[str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname] = None


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code, that of `shardgym run`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", "--verbose", action="store_true", help="list files, functions and modules")
    parser.add_argument("--suite", default="tiny-v1", help="its first task is traced (%(default)s)")
    parser.add_argument("--cost", default="roofline", help="a cost model (%(default)s)")
    parser.add_argument("--solver", default="dim_greedy", help="a solver (%(default)s)")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))

    from shardgym.cli import main as shardgym

    command = ["run", "--suite", options.suite, "--cost", options.cost, "--solver", options.solver, "--limit", "1"]
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(output), CallTrace() as trace:
        code = shardgym([*command, "--no-isolate", "--out", f"{folder}/results"])
    if code != 0:
        return code
    print(summary(trace.functions, verbose=options.verbose))
    return 0


def summary(functions: list[tuple[str, str]], *, verbose: bool) -> str:
    """Return counts, and with `verbose` a line per file and the modules."""
    names_of: dict[str, list[str]] = {}
    for file, name in functions:
        names_of.setdefault(file, []).append(name)
    changes = sum(first[0] != second[0] for first, second in itertools.pairwise(functions))
    modules = sorted(name for name in sys.modules if name.partition(".")[0] in PACKAGES)
    lines = [
        f"{len(names_of)} files, {len(functions)} functions, {changes} changes of file, {len(modules)} modules imported"
    ]
    if verbose:
        lines += [f"  {file}: {', '.join(names)}" for file, names in names_of.items()]
        lines.append(f"modules: {', '.join(modules)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
