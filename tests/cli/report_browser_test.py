"""The report's page in Chromium: narrow and wide, light and dark, on paper, by keyboard, without eyes."""

import json
import shutil
import sys
import unittest

import browser
import search_result
from command import CommandTest

# Of every text that is shown: how far its colour is from what lies behind it, less what WCAG 2.1 AA wants.
CONTRAST = r"""(() => {
  const rgb = text => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return {c: [r, g, b], a}; };
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const b = rgb(getComputedStyle(e).backgroundColor); if (b.a) return b.c; }
    return rgb(getComputedStyle(document.body).backgroundColor).c; };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), poor = [];
  let texts = 0;
  for (let node; node = walker.nextNode();) {
    const e = node.parentElement, style = getComputedStyle(e);
    if (!node.data.trim() || !e.getClientRects().length || e.closest("script,style,title,desc")) continue;
    texts += 1;
    const a = light(rgb(e.closest("svg") ? style.fill : style.color).c), b = light(behind(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) poor.push(`${ratio.toFixed(2)}: ${node.data.trim().slice(0, 40)}`);
  }
  return {texts, poor};
})()"""

# Elements beyond the right edge that nothing scrolls.
BEYOND = r"""[...document.querySelectorAll("body *")].filter(e => e.getClientRects().length && !e.closest("svg") &&
  e.getBoundingClientRect().right > document.documentElement.clientWidth + .5 && !e.closest(".scroll,.top"))
  .map(e => e.outerHTML.slice(0, 80))"""

COLUMN = """[...document.querySelectorAll(".ranks tbody tr")].map(r => r.cells[%d].dataset.v)"""


@unittest.skipUnless(browser.PROGRAM, "Chromium is not installed")
@unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
class Page(CommandTest):
    def setUp(self):
        super().setUp()
        self.document = search_result.document()
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)

    def show(self, **options):
        result, page = self.folder / "result.json", self.folder / "report.html"
        result.write_text(json.dumps(self.document))
        self.run_ok("report", result)
        self.browser.open(page, **options)
        self.assertEqual(self.browser.complaints(), [])
        return self.browser

    def test_widths_and_colours(self):
        for options in ({"width": 1280}, {"width": 420}, {"width": 420, "dark": True}, {"width": 1280, "dark": True}):
            page = self.show(**options)
            self.assertEqual(page.run(BEYOND), [], options)
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), options["width"], options)
            contrast = page.run(CONTRAST)
            self.assertGreater(contrast["texts"], 1000)
            self.assertEqual(contrast["poor"], [], options)
            shown = page.run('[...document.querySelectorAll("svg")].map(e => e.clientWidth).filter(width => width)')
            self.assertEqual(len(shown), 2, "one figure for each width")
            self.assertLessEqual(max(shown), options["width"])

    def test_sorting_by_keyboard(self):
        page = self.show()
        heads = page.run('[...document.querySelectorAll(".ranks thead th")].map(e => e.innerText.trim())')
        wanted = heads.index("RCPmem")
        for _ in range(60):
            page.press("Tab")
            if page.run('document.activeElement.closest("th")?.cellIndex') == wanted:
                break
        focus = 'document.activeElement.tagName + " " + document.activeElement.closest("th").getAttribute("aria-sort")'
        self.assertEqual(page.run(focus), "BUTTON null")
        for key, order, sign in (("Enter", "ascending", 1), (" ", "descending", -1)):
            page.press(key)
            self.assertEqual(page.run(focus), f"BUTTON {order}")
            values = [sign * float(v) for v in page.run(COLUMN % wanted)]
            self.assertEqual(values, sorted(values))
            self.assertEqual(page.run('document.querySelectorAll("[aria-sort]").length'), 1)
        self.assertEqual(len(values), 65)

    def test_names(self):
        page = self.show()
        found = {}
        for node in page.call("Accessibility.getFullAXTree")["nodes"]:
            if not node.get("ignored"):
                found.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
        for role in ("button", "image", "region", "heading", "columnheader", "rowheader"):
            self.assertGreater(len(found.get(role, [])), 0, role)
            self.assertNotIn("", found[role], role)
        self.assertEqual((len(found["main"]), len(found["contentinfo"])), (1, 1))
        self.assertEqual({"Quality against speed", "Speed against length"} - set(found["image"]), set())
        levels = page.run('[...document.querySelectorAll("h1,h2,h3")].map(e => +e.tagName[1])')
        self.assertEqual((levels[0], set(levels[1:])), (1, {2}))
        self.assertEqual(page.run('document.documentElement.lang + " " + document.title'), "en numbers-en-de: attnkit search")
        without = page.run('[...document.querySelectorAll("thead th:not([scope]), table:not(:has(th[scope=col]))")].length')
        self.assertEqual(without, 0)
        reach = page.run('[...document.querySelectorAll(".scroll,.top")].every(e => e.tabIndex == 0 && e.getAttribute("aria-label"))')
        self.assertTrue(reach, "the keyboard cannot scroll")

    def test_paper(self):
        self.show(dark=True).call("Emulation.setEmulatedMedia", media="print", features=[])
        self.assertEqual(self.browser.run("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)")
        # Paper cuts off what scrolls on a screen: A4 less its margins has 695 pixels, 1024 lying.
        self.browser.call("Emulation.setDeviceMetricsOverride", width=695, height=1000, deviceScaleFactor=1, mobile=False)
        self.assertEqual(self.browser.run('[...document.querySelectorAll("table")].map(e => e.className + " " + e.offsetWidth)'
                                          '.filter(t => +t.split(" ")[1] > (t.startsWith("ranks") ? 1024 : 695))'), [])
        self.browser.pdf(self.folder / "report.pdf")
        self.assertTrue((self.folder / "report.pdf").read_bytes().startswith(b"%PDF"))


if __name__ == "__main__":
    if not browser.PROGRAM:
        print("skipped: Chromium is not installed")
        sys.exit(77)
    unittest.main()
