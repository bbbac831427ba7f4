"""Links between network namespaces: made, limited, and gone afterwards; a reason where they cannot be made."""

import importlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def links(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    return importlib.import_module("shaped_links")


def test_links_take_root_and_two_commands(links, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "need root" in links.why_not()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else name)
    assert links.why_not() == "tc not found: install iproute2"


def test_every_namespace_has_a_limited_link_and_nothing_stays(links):
    if reason := links.why_not():
        pytest.skip(reason)
    try:
        with links.shaped_links(2, 100) as names:
            for name in names:
                shown = _output(f"ip netns exec {name} tc qdisc show dev eth0")
                assert "tbf" in shown
                assert "100Mbit" in shown
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this system's kernel or container forbids it: {error}")
    assert not set(names) & set(_output("ip netns list").split())


def _output(command):
    return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout
