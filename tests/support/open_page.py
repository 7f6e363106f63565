#!/usr/bin/env python3
"""Opens an HTML report in a browser, light and dark, and prints what it shows as JSON.

Usage: open_page.py PAGE [PICTURES]. Exits with 1 if the page logs an error, opens a dialog or asks for anything else, and
with 77 if no chromium is installed.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import browser  # noqa: E402

WHAT = """(() => { const all = (s) => [...document.querySelectorAll(s)];
  return {title: document.title, verdict: all('.verdict').map(v => v.textContent), charts: all('.chart svg').length,
          lines: all('path.curve:not(.raw)').filter(p => p.getTotalLength() > 10).length,
          bars: all('.bar').filter(b => b.getBoundingClientRect().width > 2).length, bands: all('path.band').length,
          tables: all('table').length, cells: all('td').map(c => c.textContent), samples: all('pre').map(p => p.textContent),
          names: all('.legend button').map(b => b.textContent)}; })()"""


def main() -> int:
    if browser.find_browser() is None:
        print("skipped: no chromium is installed (package chromium)")
        return 77
    shown = None
    for dark in (False, True):
        with browser.Browser(dark=dark) as page:
            page.open(sys.argv[1])
            shown = page.evaluate(WHAT)
            others = [url for url in page.requests if url != pathlib.Path(sys.argv[1]).resolve().as_uri()]
            if page.problems or others:
                print(f"the console says {page.problems}; the page asks for {others}")
                return 1
            if len(sys.argv) > 2:
                page.screenshot(f"{sys.argv[2]}/{'dark' if dark else 'light'}.png")
    print(json.dumps(shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
