"""The page of boards: what it holds, that nothing in a name becomes markup, and what a reader sees and clicks."""

import dataclasses
import json
import os
import shutil
import sys
from html.parser import HTMLParser

import pytest
from board_toys import board_of

from shardgym.cli import main
from shardgym.errors import MissingDependencyError
from shardgym.leaderboard import BASE, rank
from shardgym.leaderboard.page import board_data, render_page

EVIL = "</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def rankings(tmp_path_factory):
    """Two boards; on the second one, a failing solver has markup for its name, which records refuse."""
    folder = tmp_path_factory.mktemp("page")
    costs = {"good": [1.0, 1.1] * 4, BASE: [2.0] * 8, "slow": [1.5, 1.4] * 4, "half": [1.0] * 7 + [None]}
    first = rank(board_of(folder / "a", costs))
    rows = tuple(dataclasses.replace(r, median_s=0.1) if r.solver == "good" else r for r in first.rows)
    second = rank(board_of(folder / "b", {BASE: [1.0] * 7, "dear": [2.0] * 6 + ["error"]}, suite="other"))
    evil = tuple(dataclasses.replace(r, solver=EVIL) if r.solver == "dear" else r for r in second.rows)
    return [dataclasses.replace(first, rows=rows), dataclasses.replace(second, rows=evil)]


@pytest.fixture(scope="module")
def page(rankings):
    pytest.importorskip("plotly", reason="needs the extra 'site'")
    return render_page(rankings)


class Elements(HTMLParser):
    """Collects elements with their attributes, and the text of the data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._in_data = ("id", "data") in attrs

    def handle_data(self, data):
        self.data += data if self._in_data else ""


def test_the_page_loads_nothing_and_names_stay_inside_of_the_data(page, rankings):
    elements = Elements(page)
    found = elements.found
    assert not [attributes for _, attributes in found if "src" in attributes or "http" in str(attributes.get("href"))]
    assert not [tag for tag, _ in found if tag in ("link", "img", "iframe")]
    (policy,) = (a["content"] for tag, a in found if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert EVIL not in page
    assert sum(tag == "script" for tag, _ in found) == 3
    assert json.loads(elements.data) == json.loads(json.dumps([board_data(ranking) for ranking in rankings]))


def test_charts_have_the_solvers_with_all_records_and_their_front(rankings):
    data = board_data(rankings[0])
    shown = {one["solver"]: one for one in data["compared"]}
    assert {solver: one["front"] for solver, one in shown.items()} == {"good": True, "slow": False, BASE: False}
    assert shown["good"]["cost"] == pytest.approx((0.5 * 0.55) ** 0.5)
    low, high = shown["good"]["interval"]
    assert low < shown["good"]["cost"] < high
    assert (shown["good"]["seconds"], shown[BASE]["interval"]) == (0.1, None)
    assert "half" in data["columns"][1]["cells"]


def test_the_command_writes_the_page(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    board_of(tmp_path / "results", {"one": [1.0]})
    assert main(["leaderboard", "results", "--json", "--out", "board.json"]) == 0
    assert json.loads((tmp_path / "board.json").read_text())[0]["rows"]
    assert main(["leaderboard", "results", "--format", "html", "--out", "page.html"]) == 0
    assert capsys.readouterr().out == "board.json\npage.html\n"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_without_plotly_the_error_names_the_extra(rankings, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingDependencyError, match=r"shardgym\[site\]"):
        render_page(rankings)


@pytest.fixture
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=390,844"):
        options.add_argument(argument)
    if os.geteuid() == 0:  # Chromium has no sandbox for root
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()


def test_a_reader_sorts_filters_and_picks_a_board(browser, page, tmp_path):
    (tmp_path / "page.html").write_text(page)
    browser.get((tmp_path / "page.html").as_uri())

    def one(selector):
        return browser.find_element("css selector", selector)

    def solvers():
        return [cell.text for cell in browser.find_elements("css selector", "#table tbody td:nth-child(2)")]

    def run(script):
        return browser.execute_script(f"return {script}")

    assert one("#title").text == "toys: 8 tasks, judged by lab-cost on lab"
    assert solvers() == ["good", "slow", BASE, "half"]
    assert run("document.querySelectorAll('#ratios .point').length") == 3
    assert run("document.querySelectorAll('#pareto .point').length") == 3
    button = one("#table th:nth-child(3) button")
    button.click()
    button.send_keys("\ue007")  # by the keyboard, the other way round
    assert solvers() == [BASE, "slow", "good", "half"]
    assert one("#table th:nth-child(3)").get_attribute("aria-sort") == "descending"
    one("#filter").send_keys("O")
    assert solvers() == ["slow", "good"]  # still in the chosen order
    for option in browser.find_elements("css selector", "#board option"):
        option.click()
    assert one("#title").text == "other: 7 tasks, judged by lab-cost on lab"
    assert EVIL in solvers()
    assert run("[window.hacked, document.images.length]") == [None, 0]
    browser.execute_script("document.querySelector('#board option').textContent += ' on long hardware'.repeat(9)")
    phone = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    assert run("document.documentElement.scrollWidth") == 360
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
