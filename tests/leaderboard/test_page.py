"""The page of boards: what it holds, that nothing in a name becomes markup, and what a reader sees and clicks.

With SHARDGYM_SCREENSHOT=FILE, the test in the browser writes the picture that the README shows.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_ranking import board_of

from shardgym import load_suite
from shardgym.cli import main
from shardgym.costs.comparison import error_of
from shardgym.errors import MissingDependencyError
from shardgym.evaluation import evaluate
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.page import board_data, page_of, render_page
from shardgym.leaderboard.ranking import BASE

EVIL = "</script><img src=x onerror=window.hacked=1>"
QUICK = Path(__file__).parents[2] / "leaderboards" / "quick-v1-fbgemm"


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


@pytest.fixture(scope="module")
def rankings(tmp_path_factory):
    """Two boards: one of tiny-v1, and one whose tasks are not at hand and whose suite and a solver are called plain."""
    folder = tmp_path_factory.mktemp("page")
    evaluate(load_suite("tiny-v1"), ["random", BASE], out=folder / "a", judge="roofline", oracle="roofline", limit=6)
    board_of(folder / "b", {"plain": [1.0] * 7, "dear": [2.0] * 6 + ["error"]}, suite="plain")
    return [rank(board) for board in load_boards([folder])]


@pytest.fixture(scope="module")
def data(rankings):
    """What the page shows of both, with markup instead of "plain": records refuse such names."""
    return [renamed(json.loads(json.dumps(board_data(ranking)))) for ranking in rankings]


def renamed(value):
    if isinstance(value, dict):
        return {renamed(name): renamed(member) for name, member in value.items()}
    if isinstance(value, list):
        return [renamed(member) for member in value]
    return value.replace("plain", EVIL) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def page(data):
    pytest.importorskip("plotly", reason="needs the extra 'site'")
    return page_of(data)


def test_the_page_loads_nothing_and_allows_nothing_to_be_loaded(page):
    found = Elements(page).found
    assert not [attributes for _, attributes in found if "src" in attributes or "http" in str(attributes.get("href"))]
    assert not [tag for tag, _ in found if tag in ("link", "img", "iframe")]
    (policy,) = (a["content"] for tag, a in found if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert ":" not in policy.replace("data:", "").replace("blob:", "")


def test_names_stay_inside_of_the_data(page, data):
    elements = Elements(page)
    assert EVIL not in page
    assert sum(tag == "script" for tag, _ in elements.found) == 3
    assert json.loads(elements.data) == data


def test_plans_of_the_page_are_those_of_the_records(rankings):
    ranking = rankings[0]
    data = board_data(ranking)
    for result in ranking.board.results:
        task = ranking.board.task(result.task_index)
        plan = data["plans"][result.solver][result.task_index]
        assert plan["total"] == pytest.approx(result.total_ms, rel=1e-4)
        assert plan["bytes"] == result.plan.bytes_per_device(task)
        names = [table[0] for table in data["tasks"][result.task_index]["tables"]]
        shown = [(names[table], rows, width, device) for table, rows, width, device, *_ in plan["shards"]]
        assert shown == [(s.table, s.num_rows, s.num_columns, s.devices[0]) for s in result.plan.shards]
        assert [sum(s[4] for s in plan["shards"] if s[3] == d) for d in range(task.num_devices)] == plan["bytes"]


def test_two_plans_are_told_apart_by_the_error_of_the_judge(rankings):
    board = board_data(rankings[0])
    told = board["differences"]
    assert set(told) == {"columns", "rows"}
    error = error_of("roofline", rankings[0].board.key.judge_version, "cpu", "columns")
    assert told["columns"]["limit"] == pytest.approx(math.expm1(error.error))
    assert told["columns"]["above"].startswith("is above the error of 'roofline' for such plans, ")
    assert told["rows"]["limit"] > told["columns"]["limit"]
    assert {plan["cuts"] for plans in board["plans"].values() for plan in plans.values() if "cuts" in plan} == {
        "columns"
    }
    unknown = board_data(rankings[1])["differences"]["columns"]
    assert (unknown["limit"], unknown["unknown"]) == (
        None, "cannot be judged: the error of 'lab-cost' for such plans is not known.",
    )  # fmt: skip


def test_a_failure_is_shown_with_its_reason_and_tasks_that_are_not_at_hand_without_tables(rankings):
    data = board_data(rankings[1])
    assert data["plans"]["dear"][6] == {"failed": "because"}
    assert data["tasks"][0] == {"index": 0}
    assert data["groups"] == []


def test_the_command_writes_the_page(tmp_path, monkeypatch, capsys):
    pytest.importorskip("plotly", reason="needs the extra 'site'")
    monkeypatch.chdir(tmp_path)
    board_of(tmp_path / "results", {"one": [1.0]})
    assert main(["leaderboard", "--format", "html", "--out", "page.html"]) == 0
    written = (tmp_path / "page.html").read_text()
    assert capsys.readouterr().out == "page.html\n"
    assert main(["leaderboard", "--format", "html"]) == 0
    assert capsys.readouterr().out == written + "\n"
    assert main(["leaderboard", "--format", "html", "--also", "roofline"]) == 2
    assert "--format html goes without --details" in capsys.readouterr().err
    assert main(["leaderboard", "--format", "md", "--out", "table.md"]) == 0
    assert (tmp_path / "table.md").read_text().startswith("## toys: 1 task")


def test_without_plotly_the_error_names_the_extra(rankings, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingDependencyError, match=r"shardgym\[site\]"):
        render_page(rankings)


@pytest.fixture
def browser():
    """Headless Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(argument)
    if os.geteuid() == 0:  # Chromium has no sandbox for root
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()


class Reader:
    """Reads and clicks as a person would."""

    def __init__(self, browser, path: Path) -> None:
        self.browser = browser
        browser.get(path.as_uri())

    def one(self, selector):
        return self.browser.find_element("css selector", selector)

    def text(self, selector):
        return self.one(selector).text

    def column(self, table, number):
        cells = self.browser.find_elements("css selector", f"{table} tbody td:nth-child({number})")
        return [cell.text for cell in cells]

    def choose(self, selector, text):
        for option in self.one(selector).find_elements("css selector", "option"):
            if option.text == text:
                option.click()
                return
        raise AssertionError(f"{selector} has no '{text}'")

    def run(self, script):
        return self.browser.execute_script(script)


def test_a_reader_sorts_filters_and_compares_plans(browser, page, rankings, tmp_path):
    (tmp_path / "page.html").write_text(page)
    reader = Reader(browser, tmp_path / "page.html")
    tiny = rankings[0]
    assert reader.text("#title") == "tiny-v1: 6 of 12 tasks, judged by roofline"
    headers = [cell.text for cell in browser.find_elements("css selector", "#table th")]
    solver = headers.index("solver") + 1
    assert reader.column("#table", solver) == [row.solver for row in tiny.rows]
    assert reader.run("return document.querySelectorAll('#pareto .point').length") == 2
    assert reader.run("return document.querySelectorAll('#tasks .boxlayer path.box').length") == 2

    # Sorting, by mouse and by keyboard
    costliest_first = [row.solver for row in sorted(tiny.rows, key=lambda row: -row.mean_ms)]
    button = reader.one(f"#table th:nth-child({headers.index('mean ms') + 1}) button")
    button.click()
    assert reader.column("#table", solver) == costliest_first[::-1]
    button.send_keys("\ue007")
    assert reader.column("#table", solver) == costliest_first
    assert reader.one(f"#table th:nth-child({headers.index('mean ms') + 1})").get_attribute("aria-sort") == "descending"

    # Filtering, and from a row to its plans
    reader.one("#filter").send_keys("RAND")
    assert reader.column("#table", solver) == ["random"]
    reader.one("#table tbody button").click()
    assert reader.run("return document.activeElement.id") == "solver-a"
    record = next(result for result in tiny.board.results if result.solver == "random" and result.task_index == 3)
    reader.choose("#task", "task 3")
    assert float(reader.text("#summary-a").split()[0]) == pytest.approx(record.total_ms, rel=1e-3)
    assert len(reader.column("#shards-a", 1)) == len(record.plan.shards)
    base = next(result for result in tiny.board.results if result.solver == BASE and result.task_index == 3)
    assert sorted(reader.column("#shards-b", 5)) == sorted(str(shard.devices[0]) for shard in base.plan.shards)
    farther, nearer = sorted([record.total_ms, base.total_ms], reverse=True)
    said = reader.text("#difference")
    assert said.startswith(f"The difference of {100 * (farther / nearer - 1):.1f}% is ")
    assert "the error of 'roofline' for such plans" in said
    bars = reader.run("return document.querySelectorAll('#plan-a .bars .point').length")
    assert bars == 5 * len(record.plan.bytes_per_device(tiny.board.task(3)))

    # Pairs of solvers
    reader.choose("#pair", "random")
    assert reader.run("return document.querySelectorAll('#pairs .bars .point').length") == 1
    assert "random is cheaper" in reader.run("return document.querySelector('#pairs').textContent")

    # Another board, whose names are markup
    reader.choose("#board", f"{EVIL}: 7 tasks, judged by lab-cost on lab")
    assert EVIL in reader.column("#table", solver)
    reader.choose("#solver-a", "dear")
    reader.choose("#task", "task 6")
    assert reader.text("#summary-a") == "no plan: because"
    assert reader.run("return [window.hacked, document.images.length]") == [None, 0]

    # Light and dark, on a phone
    colors = [reader.run("return getComputedStyle(document.body).backgroundColor")]
    reader.one("#theme").click()
    colors.append(reader.run("return getComputedStyle(document.body).backgroundColor"))
    assert set(colors) == {"rgb(255, 255, 255)", "rgb(21, 23, 26)"}
    browser.set_window_size(390, 844)
    assert reader.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []

    target = os.environ.get("SHARDGYM_SCREENSHOT")
    if target:
        (tmp_path / "quick.html").write_text(render_page([rank(board) for board in load_boards([QUICK])]))
        browser.set_window_size(1100, 1300)
        assert Reader(browser, tmp_path / "quick.html").text("#title").startswith("quick-v1")
        assert browser.save_screenshot(target)
