"""The first search says that it is being compiled, and no other does."""

import os
import subprocess
import sys

FUNCTIONS = """
from neuroshard.jit import jit

@jit
def first(x):
    return x + 1

@jit
def second(x):
    return x + 2

print(first(1), second(1))
"""
LOGGED = 'import logging; logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")\n'
#: Imports a file of the folder that is given as if it lay beside the compiled search.
BESIDE = LOGGED + "import sys, neuroshard as n; n.__path__.append(sys.argv[1]); import neuroshard.toy"
SAID = "shardgym.solvers.neuroshard: compiling NeuroShard's search: some seconds"


def said(folder, code: str) -> list[str]:
    """Lines on standard error of a process that runs `code`."""
    command = [sys.executable, "-c", code, str(folder)]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "kept")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == {"2 3"}
    return done.stderr.splitlines()


def test_it_is_said_once_and_not_when_machine_code_is_kept(tmp_path):
    (tmp_path / "toy.py").write_text(FUNCTIONS)
    assert said(tmp_path, BESIDE) == [
        f"{SAID}, once for each kind of search; later runs load the machine code from disk"
    ]
    assert said(tmp_path, BESIDE) == []


def test_others_compile_silently_and_code_that_cannot_be_kept_is_compiled_in_every_process(tmp_path):
    """Functions of `__main__` come first, then the same ones as the search's, in no file that could have a cache."""
    border = "import sys\nprint('others are done', file=sys.stderr, flush=True)\n__name__ = 'neuroshard.toy'"
    done, line = said(tmp_path, LOGGED + FUNCTIONS + border + FUNCTIONS)
    assert done == "others are done"
    assert line.startswith(f"{SAID} in every process")
