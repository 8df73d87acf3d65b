"""The page in a browser: Debian's chromium, driven by Playwright.

`make test-browser` installs chromium and runs these; a plain `make test`, which is to be quick, leaves them to it.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedstrata as fs
from fedstrata.report.sections import SECTIONS
from tests.patience import PATIENCE
from tests.report.runs import run_into

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
SIZES = [(1280, 800), (390, 844)]
VIEWS = [(*size, scheme) for size in SIZES for scheme in ("light", "dark")]

pytestmark = pytest.mark.skipif("FEDSTRATA_BROWSER" not in os.environ, reason="make test-browser runs these")

BODY_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
Z = "(name) => document.querySelector(`[data-figure='${name}'] .canvas`).data[0].z"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.fail("there is no chromium; install it, or say where it is in CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE * 1000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory) -> Path:
    """Two methods, one of them with two seeds."""
    pytest.importorskip("plotly")
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        run_into(folder / f"both{seed}", "fedlayerwise + lws(beta=0.1)", seed=seed, rounds=6)
    run_into(folder / "fedavg", "fedavg", rounds=6)
    return fs.report(folder, folder / "report.html")


@contextmanager
def opened(browser: Any, file: Path, width: int = 1280, height: int = 800, scheme: str = "light") -> Iterator[Any]:
    """The page in a tab; whatever it complains of or asks for from elsewhere fails the test."""
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab.set_default_timeout(PATIENCE * 1000)
    wrong: list[str] = []
    tab.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda e: wrong.append(str(e)))
    tab.on("request", lambda r: wrong.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
    tab.goto(file.as_uri())
    tab.locator("[data-figure]").first.scroll_into_view_if_needed()  # figures are drawn when they come near
    tab.wait_for_selector(".js-plotly-plot")
    yield tab
    assert wrong == []
    tab.close()


def scroll_through(tab: Any) -> None:
    """Bring every figure that is shown near, so that it is drawn."""
    for place in tab.query_selector_all("[data-figure]"):
        if place.is_visible():
            place.scroll_into_view_if_needed()
            tab.wait_for_function("(f) => f.querySelector('.main-svg')", arg=place)


@pytest.mark.parametrize(("width", "height", "scheme"), VIEWS)
def test_the_page_is_whole_and_fits(browser, page_file, width, height, scheme):
    with opened(browser, page_file, width, height, scheme) as tab:
        for anchor, (title, _) in SECTIONS.items():
            assert tab.inner_text(f"#{anchor} h2") == title
        scroll_through(tab)
        assert tab.evaluate(BODY_OVERFLOW) == 0
        tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert tab.evaluate(BODY_OVERFLOW) == 0
        dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(246, 245, 241)"
        assert dark == (scheme == "dark")
        if shots := os.environ.get("SCREENSHOTS"):
            tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = false; })")
            tab.screenshot(path=f"{shots}/{width}-{scheme}.png", full_page=True)


def test_the_slider_changes_the_heat_map(browser, page_file):
    with opened(browser, page_file) as tab:
        figure = tab.locator("[data-figure='clients-0']")
        figure.scroll_into_view_if_needed()
        slider = figure.locator("input[type=range]")
        slider.wait_for()
        assert figure.locator("output").inner_text() == "round 6 of 6"  # it begins with the last
        last = tab.evaluate(Z, "clients-0")
        slider.fill("0")
        assert figure.locator("output").inner_text() == "round 1 of 6"
        assert tab.evaluate(Z, "clients-0") != last
        slider.fill("5")
        assert tab.evaluate(Z, "clients-0") == last


def test_another_method_shows_its_own_layers(browser, page_file):
    with opened(browser, page_file) as tab:
        tab.select_option("#lens-method", "1")
        assert not tab.is_visible("[data-figure='clients-0']")
        tab.locator("[data-figure='clients-1']").scroll_into_view_if_needed()
        tab.wait_for_selector("[data-figure='clients-1'] .main-svg")


def test_a_click_on_a_head_sorts_the_table(browser, page_file):
    with opened(browser, page_file) as tab:
        head = tab.locator("#results th", has_text="rounds").first
        rows = "[...document.querySelectorAll('#results table')[0].tBodies[0].rows]"
        column = f"{rows}.map((r) => r.cells[0].innerText)"
        by_name = tab.locator("#results th", has_text="method").first
        by_name.click()
        names = tab.evaluate(column)
        assert names == sorted(names)
        by_name.click()
        assert tab.evaluate(column) == sorted(names, reverse=True)
        assert by_name.get_attribute("aria-sort") == "descending"
        assert head.get_attribute("aria-sort") == "none"
        tab.locator("#results th", has_text="test loss").first.click()
        values = f"{rows}.map((r) => +r.cells[7].dataset.value)"
        losses = tab.evaluate(values)
        assert losses == sorted(losses, reverse=True)


def test_light_and_dark_can_be_switched_and_figures_follow(browser, page_file):
    with opened(browser, page_file) as tab:
        ink = "document.querySelector('.js-plotly-plot').layout.font.color"
        line = "document.querySelector('.js-plotly-plot').data.at(-1).line.color"
        light = tab.evaluate(ink), tab.evaluate(line)
        tab.click("#theme")
        dark = tab.evaluate(ink), tab.evaluate(line)
        assert light[0] != dark[0]
        assert light[1] != dark[1]
        tab.click("#theme")
        assert (tab.evaluate(ink), tab.evaluate(line)) == light


def test_the_buttons_of_a_figure_have_the_ground_of_its_card(browser, page_file):
    with opened(browser, page_file) as tab:
        ground = "getComputedStyle(document.querySelector('.modebar-group')).backgroundColor"
        assert tab.evaluate(ground) == "rgb(255, 255, 255)"


def test_where_nothing_can_hover_no_buttons_lie_on_the_figures(browser, page_file):
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as phone:
        tab = phone.new_page()
        tab.goto(page_file.as_uri())
        scroll_through(tab)
        assert tab.locator(".main-svg").count() > 0
        assert tab.locator(".modebar-group").count() == 0


def test_a_method_can_be_hidden_in_all_figures(browser, page_file):
    with opened(browser, page_file) as tab:
        canvas = "document.querySelector('[data-figure=curves-accuracy] .canvas')"
        shown = f"{canvas}.data.filter((t) => t.visible !== false).length"
        tab.locator("[data-figure='curves-accuracy']").scroll_into_view_if_needed()
        tab.wait_for_selector("[data-figure='curves-accuracy'] .main-svg")
        before = tab.evaluate(shown)
        tab.click("#learning .chip[data-group=g0]")
        assert tab.evaluate(shown) < before
        assert tab.get_attribute("#clients .chip[data-group=g0]", "aria-pressed") == "false"


def test_the_page_is_there_in_about_a_second(browser, page_file):
    with opened(browser, page_file) as tab:
        took = tab.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
        assert took < 5000  # about a second; a busy machine takes longer
