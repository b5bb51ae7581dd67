"""Test pages in a real browser, offline.

The fixture `page` fails on any error on the console and on any request.
"""

from pathlib import Path

import pytest

from smi.pages import Document
from smi.pages import page as write
from smi.pages.plots import single_plot
from support.browser import wait_until
from support.made_up_page import HOSTILE, document, hostile, reproduction

PANELS = (
    "[...document.querySelectorAll('.panel')]"
    ".filter((panel) => panel.offsetParent || panel.getClientRects().length).map((p) => p.id)"
)
# Every figure in sight, or nearly, is drawn as wide as its place is now.
DRAWN = (
    "[...document.querySelectorAll('[data-plot]')]"
    ".filter(e => e.clientWidth && e.getBoundingClientRect().top < innerHeight + 600)"
    ".every(e => e.querySelector('.main-svg')?.clientWidth === e.clientWidth)"
)
LINES = "document.querySelectorAll('.cartesianlayer path.js-line').length"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(write(document()), encoding="utf-8")
    return path.as_uri()


def test_tabs_by_pointer_keyboard_and_address(page, report):
    page.goto(report)
    assert page.evaluate(PANELS) == ["overview"]
    page.click("#tab-features")
    assert page.evaluate(PANELS) == ["features"]
    assert page.url.endswith("#features")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-settings"
    assert page.evaluate(PANELS) == ["settings"]
    page.keyboard.press("ArrowRight")  # round to the first
    assert page.evaluate(PANELS) == ["overview"]
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert page.get_attribute("#tab-overview", "aria-selected") == "true"
    assert page.evaluate("document.querySelectorAll('[role=tab][tabindex=\"0\"]').length") == 1
    page.goto(f"{report}#settings")
    page.reload()
    assert page.evaluate(PANELS) == ["settings"]
    page.goto("about:blank")
    page.goto(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(2):  # behind the switch of colours
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-overview"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_figures_are_drawn_and_follow_the_switch(page, report):
    page.emulate_media(color_scheme="dark")
    page.goto(f"{report}#features")
    page.wait_for_selector("[data-plot] path.js-line")
    assert page.evaluate("document.querySelectorAll('[data-plot=\"0\"] .points path').length") == 6
    ink = "getComputedStyle(document.querySelector('[data-plot] .xtick text')).fill"
    dark = page.evaluate(ink), page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    light = page.evaluate(ink), page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(233, 231, 226)", "rgb(21, 23, 26)")
    assert light == ("rgb(34, 34, 34)", "rgb(253, 253, 251)")


def test_the_cloud_shows_the_image_under_the_pointer_and_turns(page, report):
    page.goto(f"{report}#features")
    canvas = page.locator(".cloud > canvas")
    canvas.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    box = canvas.bounding_box()
    # The point at the origin is not at the centre of all points.
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_timeout(300)
    canvas.focus()
    page.keyboard.press("n")
    assert page.inner_text("#card strong") == "cat"
    assert page.inner_text("#card span") == "a.png"
    assert page.get_attribute("#card img", "src").startswith("data:image/png")
    place = page.evaluate(
        "(({left, top, height}) => [left, top + height / 2])"
        "(document.querySelector('#card').getBoundingClientRect())"
    )
    page.keyboard.press("Escape")
    assert page.is_hidden("#card")
    page.mouse.move(place[0] - 18, place[1])
    page.mouse.move(place[0] - 17, place[1])
    assert page.inner_text("#card span") == "a.png"
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    page.keyboard.press("ArrowLeft")
    turned = canvas.evaluate("canvas => canvas.toDataURL()")
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 280, box["y"] + 220)
    page.mouse.up()
    dragged = canvas.evaluate("canvas => canvas.toDataURL()")
    assert len({before, turned, dragged}) == 3
    page.click(".legend button >> nth=1")
    assert page.get_attribute(".legend button >> nth=1", "aria-pressed") == "false"


def test_all_of_the_cloud_is_inside_its_box(page, report):
    page.goto(f"{report}#features")
    canvas = page.locator(".cloud > canvas")
    marked = """canvas => {
      const { width, height } = canvas, c = new OffscreenCanvas(width, height).getContext(
        "2d", { willReadFrequently: true });
      c.drawImage(canvas, 0, 0);
      const strips = [[0, 0, width, 1], [0, height - 1, width, 1], [0, 0, 1, height],
                      [width - 1, 0, 1, height]];
      const any = (strip) => c.getImageData(...strip).data.some((value) => value > 0);
      return [any([0, 0, width, height]), strips.some(any)];
    }"""
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        canvas.focus()
        for key in ("ArrowLeft", "ArrowUp", "ArrowUp"):
            page.keyboard.press(key)
            assert canvas.evaluate(marked) == [True, False]


def test_one_choice_is_for_the_whole_page(page, report):
    page.goto(f"{report}#features")
    page.click("#features fieldset label >> nth=1")
    page.wait_for_selector("#features .option.chosen [data-plot] path.js-line")
    assert page.is_hidden(".cloud")
    page.click("#tab-settings")
    assert page.inner_text("#settings .option.chosen p >> nth=-1") == "b"


def test_on_a_phone_nothing_is_wider_than_the_screen(page, report):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(report)
    for tab in ("overview", "settings", "features"):
        page.click(f"#tab-{tab}")
        wait_until(page, DRAWN)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.wait_for_selector("[data-plot] path.js-line")
    page.click("#tab-overview")
    wait_until(page, "document.querySelector('.scroll').matches('.more-right:not(.more-left)')")
    page.evaluate("document.querySelector('.scroll').scrollLeft = 1e6")
    wait_until(page, "document.querySelector('.scroll').matches('.more-left:not(.more-right)')")
    title = page.locator(".scroll caption span").bounding_box()
    assert 0 <= title["x"] < title["x"] + title["width"] <= 390  # it does not scroll away
    page.click("#tab-features")
    boxes = page.evaluate(
        "[...document.querySelectorAll('[data-plot=\"0\"] .cartesianlayer path.js-line')]"
        ".map((e) => e.getBoundingClientRect().left)"
    )
    assert len(boxes) == 2
    page.locator(".legend button").first.scroll_into_view_if_needed()
    assert page.locator(".legend button").first.bounding_box()["height"] < 60
    assert abs(boxes[0] - boxes[1]) < 30  # the two panels are stacked


def test_on_paper_everything_is_there_and_light(page, report):
    page.emulate_media(color_scheme="dark")
    page.goto(report)
    page.wait_for_timeout(100)
    page.emulate_media(media="print")
    page.wait_for_selector("[data-plot='0'] path.js-line")
    assert page.evaluate(PANELS) == ["overview", "features", "settings"]
    assert page.is_visible(".option.chosen >> nth=0")
    assert page.is_hidden(".option >> nth=1")  # the reader chose the other
    assert page.is_hidden(".tabs")
    assert page.is_hidden("#theme")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('[data-plot] .xtick text')).fill")
        == "rgb(34, 34, 34)"
    )
    assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
    widths = page.evaluate(
        "[...document.querySelectorAll('[data-plot] svg.main-svg')]"
        ".map((svg) => svg.getBoundingClientRect().right)"
    )
    assert max(widths) <= page.evaluate("innerWidth")
    page.emulate_media(media="screen")
    page.wait_for_selector("html:not(.printing)")
    assert page.evaluate(PANELS) == ["overview"]


def test_hostile_names_do_nothing(page, tmp_path):
    # Scrolling hides the card; without motion it ends at once.
    page.emulate_media(reduced_motion="reduce")
    path = tmp_path / "hostile.html"
    path.write_text(write(hostile("".join(HOSTILE))), encoding="utf-8")
    page.goto(f"{path.as_uri()}#features")
    page.wait_for_selector("[data-plot] path.js-line")
    page.hover(".plot .nsewdrag", force=True)
    page.locator(".cloud > canvas").focus()
    for _ in range(50):  # an unfinished scroll hides the card again
        page.keyboard.press("n")
        page.wait_for_timeout(100)
        if page.is_visible("#card"):
            break
    assert page.is_visible("#card")
    assert page.evaluate(
        "window.hurt === undefined && !document.querySelector('.plot svg a, #card a, #card svg')"
    )


# ------------------------------------------------------------------------ a page of one figure


def figure_page(tmp_path, *traces, width=900):
    caption = {"name": "caption", "text": "A caption.", "showarrow": False, "x": 0, "y": 0}
    layout = {
        "width": width,
        "height": 500,
        "meta": {"caption": "A caption."},
        "annotations": [caption],
        "paper_bgcolor": "white",
        "showlegend": True,
    }
    block = single_plot({"data": list(traces), "layout": layout}, "gradient-norm")
    path = tmp_path / "figure.html"
    path.write_text(write(Document("gradient-norm", "", {"Figure": [block]})), encoding="utf-8")
    return path.as_uri()


def line(name, y):
    return {"type": "scatter", "x": [1, 2, 3], "y": y, "name": name, "mode": "lines"}


def test_a_single_figure_is_zoomed_hidden_and_saved_as_svg(page, tmp_path):
    page.emulate_media(color_scheme="dark")
    page.goto(figure_page(tmp_path, line("a", [1, 3, 2]), line("b", [2, 1, 3])))
    page.wait_for_selector("[data-plot] path.js-line")
    assert page.evaluate(LINES) == 2
    page.click(".legendtoggle >> nth=0")
    wait_until(page, f"{LINES} === 1")
    box = page.locator(".nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 200, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, middle + 2, steps=4)
    page.mouse.up()
    first, last = page.evaluate("document.querySelector('.plot').layout.xaxis.range")
    assert 1 < first < last < 3
    with page.expect_download() as download:
        page.click("text=Save as SVG")
    assert download.value.suggested_filename == "gradient-norm.svg"
    saved = Path(download.value.path()).read_text(encoding="utf-8")
    assert 'width="900" height="500"' in saved
    assert "A caption." in saved
    assert "fill: rgb(255, 255, 255)" in saved  # white paper, although the page is dark
    assert "rgb(233, 231, 226)" not in saved


def test_a_figure_of_images_keeps_its_width_and_scrolls_on_a_phone(page, tmp_path):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(figure_page(tmp_path, {"type": "heatmap", "z": [[1, 2], [3, 4]]}))
    page.wait_for_selector(".main-svg")
    assert page.evaluate("document.querySelector('.main-svg').clientWidth") == 675
    wait_until(page, "document.querySelector('.scroll').matches('.more-right')")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_reproduction_page_on_a_phone_and_on_paper(page, tmp_path):
    path = tmp_path / "index.html"
    path.write_text(write(reproduction()), encoding="utf-8")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(path.as_uri())
    for tab in ("verdicts", "claims", "tables", "figures"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wait_until(page, "document.querySelector('img.picture').naturalWidth > 0")
    page.click("#tab-verdicts")
    page.click("a[href='#gradient-2']")
    wait_until(page, f"{PANELS}.join() === 'claims'")
    colours = page.evaluate(
        "[...document.querySelectorAll('#claims .outcome-word')]"
        ".map((e) => getComputedStyle(e).color)"
    )
    assert len(set(colours)) == 3
    page.emulate_media(media="print")
    assert page.evaluate(PANELS) == ["verdicts", "claims", "tables", "figures"]
