"""Write the digests of the suites that come with the package.

    python tools/write_suite_digests.py              # of all suites
    python tools/write_suite_digests.py tiny-v1      # of some

A digest is a promise: once a suite is released, its tasks never change, and a changed task needs a suite of another
name. So a file that would change is only written with --replace, which is for suites that nobody has used yet.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from shardgym.errors import ShardGymError
from shardgym.suites import digests_path, load_suite, suite_names


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help="names of suites; all when none is given")
    parser.add_argument("--replace", action="store_true", help="overwrite digests that differ")
    options = parser.parse_args(arguments)
    try:
        refused = [name for name in options.suites or suite_names() if not write(name, options.replace)]
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 1 if refused else 0


def write(name: str, replace: bool) -> bool:
    """Write the digests of one suite; returns whether the file now holds them."""
    suite = load_suite(name, verify=False)
    tasks = tqdm(suite, desc=name, unit="task", delay=1, leave=False, disable=None)
    text = "".join(f"{task.digest}\n" for task in tasks)
    path = digests_path(name)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        print(f"{name}: {len(suite)} digests, unchanged")
        return True
    if path.exists() and not replace:
        print(f"{name}: tasks differ from the digests in {path}; --replace overwrites them", file=sys.stderr)
        return False
    partial = Path(f"{path}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    print(f"{name}: {len(suite)} digests written")
    return True


if __name__ == "__main__":
    sys.exit(main())
