"""A Chromium for the checks of pages: windows of three kinds, and what holds for each page in each of them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

WINDOWS = {"light": ("light", 1200), "dark": ("dark", 1200), "narrow": ("light", 390)}
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
LEAST_CONTRAST = 4.5

PALE_TEXTS = """() => {
  const parsed = (text) => {
    const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a === undefined ? 1 : a];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const background = (node) => {
    if (node === null) {
      return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1];
    }
    return over(parsed(getComputedStyle(node).backgroundColor), background(node.parentElement));
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((one) => one / 255)
      .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const style = getComputedStyle(node);
    const color = parsed(style[node.namespaceURI.endsWith("svg") ? "fill" : "color"]);
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.matches("script, style, option")
        || node.closest("svg") || color[3] === 0) {
      continue;
    }
    for (let one = node; one !== null; one = one.parentElement) {
      color[3] *= Number(getComputedStyle(one).opacity);
    }
    const below = background(node);
    const [light, dark] = [luminance(over(color, below)), luminance(below)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < LEAST) {
      found.push(`${contrast.toFixed(2)}: ${walker.currentNode.data.trim().slice(0, 60)}`);
    }
  }
  return found;
}""".replace("LEAST", str(LEAST_CONTRAST))
"""Texts whose contrast is too low, with it. Texts inside drawings are left out: circles and lines lie behind them."""


def options_of(description: str | None) -> argparse.ArgumentParser:
    """The options that all checks of pages have."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--chromium", help="a Chromium to use (default: the one that Playwright has installed)")
    parser.add_argument("--screenshots", type=Path, help="a folder to write screenshots into")
    return parser


@contextlib.contextmanager
def chromium(options: argparse.Namespace) -> Iterator[Browser]:
    """The browser that the options name."""
    if options.screenshots is not None:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def window(browser: Browser, name: str) -> Iterator[Page]:
    """A page in a window of the kind. Raises AssertionError at the end if a script failed or logged an error."""
    scheme, width = WINDOWS[name]
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 1000})
    context.set_default_timeout(120_000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    # A refused request is the point of some checks, and the browser logs each.
    assert [one for one in problems if "the server responded with a status of 4" not in one] == []
    context.close()


def check_layout(page: Page) -> None:
    """The page does not scroll sideways, and no text is pale."""
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), "the page scrolls sideways"
    assert page.evaluate(PALE_TEXTS) == []


def screenshot(page: Page, options: argparse.Namespace, name: str) -> None:
    """Write a screenshot of the whole page, if a folder for them was given."""
    if options.screenshots is not None:
        page.screenshot(path=options.screenshots / f"{name}.png", full_page=True)
