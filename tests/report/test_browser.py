"""The page in a real browser."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from steelyard.imaging.datasets.prepared import read_prepared, read_volumes
from steelyard.imaging.scans.volumes import canonical
from steelyard.report.data.predictions import SubjectPredictions
from steelyard.report.data.runs import read_runs
from steelyard.report.html.assembly import assemble
from steelyard.report.html.page import render_report
from steelyard.report.html.viewer import pack_subject
from steelyard.report.tables.table import PageTable

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="install steelyard's extra 'test' for browser tests")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium for browser tests")

PIXELS = "() => { const c = document.querySelector('canvas.slice'); return c.toDataURL(); }"
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def address(run_folder, cohort, tmp_path_factory):
    """A page whose predictions are known: the lesion moved to the right, and to the front."""
    runs = read_runs([run_folder])
    subject = next(one for one in read_prepared(cohort).subjects if one.key in runs[0].subjects)
    lesion = canonical(read_volumes(subject).wmh).voxels
    found = {"flair": np.roll(lesion, 4, axis=0), "t1": np.roll(lesion, 4, axis=1)}
    shown = SubjectPredictions(
        key="<img src=x onerror=alert(1)>",
        volumes=read_volumes(subject),
        runs={"equal": runs[0]},
        masks={"equal": found},
    )
    rows = [["a", "10.0 ± 1"], ["b", "–"], ["c", "9.5"], ["d", "−3"], ["e", "∞"]]
    numbers = PageTable(title="numbers", headings=["name", "value"], rows=rows)
    report = assemble(runs, title="T", lead="L")
    report = replace(report, tables=[numbers, *report.tables], subjects=[pack_subject(shown)])
    page = tmp_path_factory.mktemp("page") / "report.html"
    page.write_text(render_report(report))
    return page.as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        )
        yield chromium
        chromium.close()


@contextmanager
def shown(browser, address, **how):
    """Open the page; whatever it says on the console or asks of anyone fails the test."""
    context = browser.new_context(**({"viewport": WIDE} | how))
    context.set_default_timeout(120_000)  # a busy machine is slow, not wrong
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector(".viewer[data-state=ready]")
    yield page
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [address]
    context.close()


def test_the_viewer_goes_through_the_volume_and_switches_what_it_shows(browser, address):
    with shown(browser, address) as page:
        seen = [page.evaluate(PIXELS)]
        start = int(page.get_attribute(".viewer", "data-slice"))
        page.locator("canvas.slice").hover()
        page.mouse.wheel(0, 100)
        page.wait_for_selector(f".viewer[data-slice='{start - 1}']")
        seen.append(page.evaluate(PIXELS))
        page.locator("canvas.slice").focus()
        page.keyboard.press("ArrowUp")
        assert page.evaluate(PIXELS) == seen[0]
        page.locator("input[type=range]").fill("0")
        assert page.inner_text("output").startswith("1 of ")
        seen.append(page.evaluate(PIXELS))
        page.locator("input[type=range]").fill(str(start))
        for box in page.locator("input.layer").all():
            box.set_checked(not box.is_checked())
            seen.append(page.evaluate(PIXELS))
        page.get_by_label("T1", exact=True).check()
        page.wait_for_selector(".viewer[data-state=ready]")
        seen.append(page.evaluate(PIXELS))
        assert len(set(seen)) == len(seen)


def test_the_overlay_lies_on_the_lesion(browser, address):
    coloured = """() => {
        const c = document.querySelector('canvas.slice');
        const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', { willReadFrequently: true });
        copy.drawImage(c, 0, 0);
        const d = copy.getImageData(0, 0, c.width, c.height).data;
        let n = 0;
        for (let i = 0; i < d.length; i += 4) n += Math.abs(d[i] - d[i + 2]) > 15;
        return n / (c.width * c.height);
    }"""
    with shown(browser, address) as page:
        boxes = page.locator("input.layer").all()
        for box in boxes:
            box.uncheck()
        assert page.evaluate(coloured) == 0
        boxes[0].check()
        held = json.loads(page.locator("#subject-data").text_content())[0]
        width, height, _ = held["size"]
        lesion = max(held["profile"])
        assert page.evaluate(coloured) == pytest.approx(lesion / (width * height), rel=0.1)


def test_a_click_or_a_key_sorts_and_missing_values_come_last(browser, address):
    with shown(browser, address) as page:
        table = page.locator("table").first
        names = lambda: table.locator("tbody td:first-child").all_inner_texts()  # noqa: E731
        table.get_by_role("button", name="value").click()
        assert names() == ["d", "c", "a", "e", "b"]
        assert table.locator("th").nth(1).get_attribute("aria-sort") == "ascending"
        page.keyboard.press("Enter")
        assert names() == ["e", "a", "c", "d", "b"]
        table.get_by_role("button", name="name").click()
        assert names() == ["a", "b", "c", "d", "e"]
        assert table.locator("th").nth(1).get_attribute("aria-sort") is None


@pytest.mark.parametrize("viewport", [WIDE, PHONE, {"width": 320, "height": 640}], ids=lambda size: str(size["width"]))
def test_nothing_is_wider_than_the_screen(browser, address, viewport):
    with shown(browser, address, viewport=viewport) as page:
        assert page.evaluate("() => document.documentElement.scrollWidth") == viewport["width"]
        assert page.locator(".panels svg").first.is_visible()


def test_dark_is_dark_in_figures_too(browser, address):
    ink = "() => getComputedStyle(document.querySelector('.panels svg text')).fill"
    paper = "() => getComputedStyle(document.body).backgroundColor"
    with shown(browser, address, color_scheme="light") as page:
        light = page.evaluate(ink), page.evaluate(paper)
    with shown(browser, address, color_scheme="dark") as page:
        dark = page.evaluate(ink), page.evaluate(paper)
    assert light == ("rgb(93, 102, 111)", "rgb(251, 251, 250)")
    assert dark == ("rgb(154, 164, 173)", "rgb(15, 18, 20)")
