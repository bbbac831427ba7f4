"""YAML text that cannot grow: aliases are counted as often as they are used before anything is built."""

from __future__ import annotations

from typing import Any

import yaml

from shardgym.errors import InputError

#: Values that a file may stand for, each alias counted as all that it repeats. The shipped suites have hundreds.
MAX_VALUES = 2_000_000


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML of plain values.

    A few lines of aliases to lists of aliases stand for billions of values, which every reader of them would have to
    go through.

    Args:
        text: the document.
        source: named in errors.

    Raises:
        InputError: not YAML, holds itself, or stands for more than `MAX_VALUES` values.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if (count := _values(node, {})) > MAX_VALUES:
            shown = str(count) if count < 10**12 else "10^12 or more"
            raise InputError(f"{source}: stands for {shown} values with its aliases, expected at most {MAX_VALUES}")
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{source}: not valid YAML ({' '.join(str(error).split())})") from None
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count a node and all below it; `known` holds the counts of nodes that were seen, 0 while one is being counted."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = 0
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    elif known[id(node)] == 0:
        raise ValueError("a value holds itself")
    return known[id(node)]
