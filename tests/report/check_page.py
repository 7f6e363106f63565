#!/usr/bin/env python3
"""Opens an HTML report in a real browser and uses it: hover, zoom, smoothing, log scale, filters, themes.

Usage: check_page.py REPORT_TESTS [PICTURES], the program with the tests of src/report, and a folder for screenshots.
Exits with 77 if no chromium is installed.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import browser  # noqa: E402

EVIL = "<script>alert(1)</script>"


def expect(condition: bool, what) -> None:
    if not condition:
        raise SystemExit(f"check_page: {what}")


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def check_start(page) -> None:
    expect(page.evaluate("document.querySelector('h1').textContent") == f"Example {EVIL}", "the title is not shown as it is")
    expect(page.evaluate("document.title") == f"Example {EVIL}", "the title of the window")
    expect(page.evaluate("document.querySelectorAll('svg').length") == 2, "two drawings expected")
    expect(page.evaluate("document.querySelectorAll('.chart path.curve').length") == 4, "four lines expected")
    expect(page.evaluate("[...document.querySelectorAll('.chart path.curve')].every(p => p.getTotalLength() > 100)"), "an empty line")
    expect(page.evaluate("document.querySelectorAll('.chart path.band').length") == 1, "one band expected")
    expect(page.evaluate("document.querySelectorAll('.chart circle.dot').length") == 4, "four evaluations expected")
    names = page.evaluate("[...document.querySelectorAll('.legend button')].map(b => b.textContent)")
    expect(names[:2] == [EVIL, "fp8 </script>"], names)
    widths = page.evaluate("[...document.querySelectorAll('.bar')].map(b => b.getBoundingClientRect().width)")
    expect(abs(widths[0] / widths[1] - 73 / 107) < 0.01, f"bars are {widths}")
    expect(page.evaluate("document.querySelector('pre').textContent.includes('\\\\x1b[31m')"), "the escape is not shown")


def check_hover(page) -> None:
    box = page.box(".chart svg")
    left, right = numbers(page.evaluate("document.querySelector('.chart svg').dataset.x"))
    at = box["x"] + 62 + (100 - left) / (right - left) * (box["width"] - 76)
    page.move(at, box["y"] + 100)
    text = page.evaluate("document.querySelector('.tip').innerText")
    expect(text.startswith("step 100"), f"the tip says {text!r}")
    lines = page.evaluate("[...document.querySelectorAll('.tip div')].map(d => [d.querySelector('.name').textContent, d.querySelector('.value').textContent])")
    expect(dict(lines)["evaluation"] == "1.1", lines)
    expect(dict(lines)["mean of 3 seeds"] == "2.09 (1.89 to 2.29)", lines)
    expect(EVIL in dict(lines) and len(lines) == 4, lines)
    expect(page.evaluate("document.querySelectorAll('.cross').length") == 1, "no line under the pointer")
    # A gap has no value.
    page.move(box["x"] + 62 + (120 - left) / (right - left) * (box["width"] - 76), box["y"] + 100)
    lines = dict(page.evaluate("[...document.querySelectorAll('.tip div')].map(d => [d.querySelector('.name').textContent, d.querySelector('.value').textContent])"))
    expect(lines["fp8 </script>"] == "-", lines)
    page.move(box["x"] + 200, box["y"] - 60)
    expect(page.evaluate("document.querySelector('.tip').hidden"), "the tip stays")


def check_zoom(page) -> None:
    box = page.box(".chart svg")
    whole = page.evaluate("document.querySelector('.chart svg').dataset.x")
    high = numbers(page.evaluate("document.querySelector('.chart svg').dataset.y"))
    page.drag(box["x"] + 62 + (box["width"] - 76) / 2, box["y"] + 150, box["x"] + box["width"] - 20, box["y"] + 155)
    left, right = numbers(page.evaluate("document.querySelector('.chart svg').dataset.x"))
    expect(abs(left - 100.5) < 1 and 195 < right < 201, f"zoomed to {left}, {right}")
    zoomed = numbers(page.evaluate("document.querySelector('.chart svg').dataset.y"))
    expect(zoomed[1] < high[1] / 2, f"the values do not follow the zoom: {high}, {zoomed}")
    # Both axes.
    page.drag(box["x"] + 150, box["y"] + 60, box["x"] + 350, box["y"] + 200)
    inner = numbers(page.evaluate("document.querySelector('.chart svg').dataset.y"))
    expect(inner[1] < zoomed[1] and inner[0] > zoomed[0], f"no zoom along the values: {zoomed}, {inner}")
    expect(page.evaluate("getComputedStyle(document.querySelector('.chart .reset')).visibility") == "visible", "no way back")
    reset = page.box(".chart .reset")
    page.click(reset["x"] + 10, reset["y"] + 10)
    expect(page.evaluate("document.querySelector('.chart svg').dataset.x") == whole, "the zoom is not reset")
    # A click is no zoom.
    page.click(box["x"] + 200, box["y"] + 150)
    expect(page.evaluate("document.querySelector('.chart svg').dataset.x") == whole, "a click zooms")


def check_smoothing(page) -> None:
    length = "document.querySelectorAll('.chart path.curve:not(.raw)')[0].getTotalLength()"
    rough = page.evaluate(length)
    box = page.box(".chart input[type=range]")
    page.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] / 2)
    weight = float(page.evaluate("document.querySelector('.chart output').textContent"))
    expect(0.8 < weight < 0.99, f"the slider is at {weight}")
    expect(page.evaluate("document.querySelectorAll('.chart path.curve.raw').length") == 2, "the raw lines are gone")
    expect(page.evaluate(length) < 0.9 * rough, f"the line is not smoother: {rough}, {page.evaluate(length)}")
    # The value is TensorBoard's: a running mean, corrected for its start.
    sums = page.evaluate("(() => { const c = document.querySelector('.chart .drawing').chart, s = c.data.series[0].y, w = c.weight;"
                         "let a = 0, n = 0; for (let i = 0; i < 50; ++i) { a = a * w + s[i] * (1 - w); n = n * w + (1 - w); }"
                         "return [a / n, c.drawnLines[0].y[49]]; })()")
    expect(abs(sums[0] - sums[1]) < 1e-9, sums)
    page.evaluate("(() => { const s = document.querySelector('.chart input'); s.value = 0; s.dispatchEvent(new Event('input')); })()")


def check_log_and_legend(page) -> None:
    linear = numbers(page.evaluate("document.querySelector('.chart svg').dataset.y"))
    labels = "[...document.querySelectorAll('.chart svg text')].map(t => t.textContent)"
    box = page.box(".chart .tools button")
    page.click(box["x"] + 10, box["y"] + 10)
    low, high = numbers(page.evaluate("document.querySelector('.chart svg').dataset.y"))
    expect(0 < low < 1.1 and high > 10 and [low, high] != linear, f"log scale from {low} to {high}")
    expect(page.evaluate("document.querySelector('.chart .tools button').getAttribute('aria-pressed')") == "true", "the button is not pressed")
    shown = page.evaluate(labels)
    expect("2" in shown and "5" in shown and "10" in shown, shown)
    page.click(box["x"] + 10, box["y"] + 10)
    legend = page.box(".legend button")
    page.click(legend["x"] + 10, legend["y"] + 10)
    expect(page.evaluate("document.querySelectorAll('.chart path.curve').length") == 3, "the line is not hidden")
    page.click(legend["x"] + 10, legend["y"] + 10)
    expect(page.evaluate("document.querySelectorAll('.chart path.curve').length") == 4, "the line does not come back")


def check_keys(page) -> None:
    page.evaluate("document.querySelector('.chart svg').focus()")
    before = page.evaluate("document.querySelector('.chart .drawing').chart.hovered")
    page.key("ArrowRight", 39)
    after = page.evaluate("document.querySelector('.chart .drawing').chart.hovered")
    expect(after == before + 1, f"the arrow goes from {before} to {after}")
    page.key("Escape", 27)


def check_table(page) -> None:
    cells = "[...document.querySelectorAll('td:nth-child(2)')].map(c => c.textContent)"
    head = page.box("th:nth-child(2)")
    page.click(head["x"] + head["width"] - 5, head["y"] + 5)
    expect(page.evaluate(cells) == ["9.25", "10.5", "100.0"], page.evaluate(cells))
    page.click(head["x"] + head["width"] - 5, head["y"] + 5)
    expect(page.evaluate(cells) == ["100.0", "10.5", "9.25"], page.evaluate(cells))


def check_parallel(page) -> None:
    kept = "Number(document.querySelector('.parallel svg').dataset.kept)"
    expect(page.evaluate(kept) == 24, "24 runs expected")
    expect(page.evaluate("document.querySelectorAll('.parallel path.run').length") == 24, "24 lines expected")
    box = page.box(".parallel svg")
    # On the best line, a third of the way to the second axis.
    spot = page.evaluate("(() => { const c = document.querySelector('.parallel .drawing').chart, p = c.paths[c.paths.length - 1];"
                         "const [a, b] = p.points; return {x: a[0] + (b[0] - a[0]) * 0.37, y: a[1] + (b[1] - a[1]) * 0.37, name: p.line.name}; })()")
    page.move(box["x"] + spot["x"], box["y"] + spot["y"])
    expect(page.evaluate("document.querySelectorAll('.parallel .lit').length") == 1, "no line is lit")
    text = page.evaluate("document.querySelector('.tip').innerText")
    expect(text.startswith("run-") and "learning_rate" in text and "eval_loss" in text, text)
    # The words of the second axis: keep the upper half.
    at = page.evaluate("document.querySelector('.parallel .drawing').chart.xs[1]")
    page.drag(box["x"] + at, box["y"] + 40, box["x"] + at, box["y"] + 120)
    expect(page.evaluate(kept) == 8, f"{page.evaluate(kept)} runs pass the filter, expected 8")
    expect(page.evaluate("document.querySelectorAll('.parallel path.run.off').length") == 16, "the others are not faded")
    expect(page.evaluate("document.querySelector('.parallel .tools').textContent").startswith("8 of 24 runs"), "the count")
    page.click(box["x"] + at, box["y"] + 200)
    expect(page.evaluate(kept) == 24, "the click does not end the filter")


def check_theme(page, dark: bool) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(colour)
    expect((sum(int(v) for v in first[4:-1].split(",")) < 200) == dark, f"the page is {first}")
    box = page.box("#theme")
    page.click(box["x"] + 10, box["y"] + 10)
    expect(page.evaluate(colour) != first, "the theme does not change")
    page.click(box["x"] + 10, box["y"] + 10)
    expect(page.evaluate(colour) == first, "the theme does not change back")


def main() -> int:
    if browser.find_browser() is None:
        print("skipped: no chromium is installed (package chromium)")
        return 77
    pictures = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder:
        example = f"{folder}/page.html"
        subprocess.run([sys.argv[1], "--gtest_filter=HtmlPage.WritesTheExampleForTheBrowser"], check=True,
                       env=dict(os.environ, OCTET_PAGE_EXAMPLE=example), stdout=subprocess.DEVNULL)
        for dark in (False, True):
            with browser.Browser(dark=dark) as page:
                page.open(example)
                check_start(page)
                if not dark:
                    for check in (check_hover, check_zoom, check_smoothing, check_log_and_legend, check_keys, check_table, check_parallel):
                        check(page)
                check_theme(page, dark)
                expect(not page.problems, f"the console says {page.problems}")
                others = [url for url in page.requests if not url.startswith("file:") or not url.endswith("page.html")]
                expect(not others, f"the page asks for {others}")
                if pictures:
                    page.screenshot(f"{pictures}/{'dark' if dark else 'light'}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
