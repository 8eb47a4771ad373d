"""The explorer in a real browser against a running server: what the page shows is what the API answered.

Steps through every example with the keyboard, under the mask and without it, in light, dark and narrow windows, and
compares each number on the page with the answer that the browser received. Needs the extra `browser`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any

from playwright.sync_api import Browser, Page, Response
from tqdm import tqdm

from tests.deployments.browser import WINDOWS, check_layout, chromium, options_of, screenshot, window

FEEDBACK = {"s": ("Right: ", "Wrong: "), "r": ("Right: ", "Wrong: "), "n": "That never happens: "}
"""What the page says first to each of the three predictions, by their keys."""


def percent(probability: float) -> str:
    """A probability as the page writes it."""
    return "< 0.1 %" if 0 < probability < 0.0005 else f"{100 * probability:.1f} %"


def visible(token: dict[str, Any]) -> str:
    """A token as the page writes it."""
    text = token["text"]
    if "\ufffd" in text:
        text = "".join(chr(byte) if byte < 128 else f"‹{byte:X}›" for byte in token["bytes"])
    return text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥") or "(no text)"


def check_step(page: Page, step: dict[str, Any], token: str, number: int, of: int) -> None:
    """Compares the step on the page, which drew `token`, with `step`, an entry of the answer's `diagnostics`."""

    def text(id: str) -> str:
        return page.locator(f"#{id}").inner_text()

    favourite = step["raw_choices"][0]
    allowed = {tuple(choice["bytes"]) or choice["text"] for choice in step["masked_choices"]}
    replaced = (tuple(favourite["bytes"]) or favourite["text"]) not in allowed
    chance = percent(math.exp(favourite["logprob"]))
    flags = [flag for flag in ("forced", "drafted") if step[flag]]
    remark = f" ({', '.join(flags)})" if flags else ""
    assert text("headline") == f"Token {number} of {of}: {token}{remark}"
    assert text("allowed") == ("all: there is no mask" if step["allowed"] is None else f"{step['allowed']:,}")
    assert text("mass-number") == percent(step["rejection_mass"])
    assert text("favourite").startswith(f"{visible(favourite)} ({chance})")
    assert text("favourite").endswith("which breaks the constraint") == replaced
    masked = [visible(choice) for choice in step["masked_choices"]]
    shown = page.locator("#choices tr:not(.forbidden) th").all_inner_texts()
    assert sorted(set(masked)) == sorted(set(shown) & set(masked))
    assert page.locator("#tokens [aria-current=step]").inner_text() == token
    check_automaton(page, step, token)


def check_automaton(page: Page, step: dict[str, Any], token: str) -> None:
    """The drawing has a circle for each state, a second one where the text may end, and one edge that was taken."""
    automaton = step.get("automaton")
    assert page.locator("#automaton-figure").is_visible() == (automaton is not None)
    if automaton is None:
        return
    states = [automaton, *automaton["successors"]]
    assert page.locator("#automaton circle").count() == len(states) + sum(state["terminal"] for state in states)
    assert page.locator("#automaton .here text").text_content() == str(step["state"])
    labels = page.locator("#automaton .token-label").all_text_contents()
    for label, successor in zip(labels, automaton["successors"], strict=True):
        assert label.startswith(visible(successor["tokens"][0]))
    (taken,) = page.locator("#automaton .taken .token-label").all_text_contents()
    assert taken.startswith(token)


def check_graph(page: Page, step: dict[str, Any], graph: dict[str, Any] | None) -> None:
    """A whole automaton has a circle for each state, one of them filled, and a label for each edge."""
    assert page.locator("#graph-figure").is_visible() == (graph is not None)
    if graph is not None:
        assert page.locator("#graph .state").count() == len(graph["states"])
        assert page.locator("#graph .token-label").count() == len(graph["edges"])
        assert page.locator("#graph .here text").text_content() == str(step["state"])


def walk(page: Page, answer: dict[str, Any]) -> int:
    """Steps from the first to the last token with the arrow key; how many there are."""
    choice = answer["choices"][0]
    steps = choice["diagnostics"]
    graph = next((step["graph"] for step in steps if step.get("graph")), None)
    page.keyboard.press("Home")
    for number, (step, drawn) in enumerate(zip(steps, choice["logprobs"]["content"], strict=True), 1):
        check_step(page, step, visible({"text": drawn["token"], "bytes": drawn["bytes"]}), number, len(steps))
        check_graph(page, step, graph)
        page.keyboard.press("ArrowRight")
    return len(steps)


def check_example(page: Page, example: int) -> int:
    """Runs one of the page's examples and walks through both of its generations; the number of steps."""
    responses: list[Response] = []

    def keep(response: Response) -> None:
        responses.append(response)

    page.on("response", keep)
    page.select_option("#example", index=example)
    page.click("#run")
    page.locator("#run:enabled").wait_for()
    page.remove_listener("response", keep)
    assert page.locator("#status").inner_text() == ""
    answers = {"structured_outputs" in (response.request.post_data or ""): response.json() for response in responses}
    texts = {masked: answer["choices"][0]["message"]["content"] for masked, answer in answers.items()}
    assert page.locator("#masked-text").text_content() == texts[True]
    assert page.locator("#free-text").text_content() + page.locator("#broken-text").text_content() == texts[False]
    assert texts[True].startswith(page.locator("#free-text").text_content() or "")
    count = walk(page, answers[True])
    page.keyboard.press("m")
    count += walk(page, answers[False])
    page.keyboard.press("m")
    return count


def check_prediction(page: Page, answer_key: str) -> None:
    """A question hides what it asks for, and a key answers it."""
    page.keyboard.press("Home")
    page.check("#predict")
    assert page.locator("#question").is_visible()
    assert not page.locator("#step").is_visible() and not page.locator("#overview").is_visible()
    page.keyboard.press("ArrowRight")
    page.keyboard.press(answer_key)
    assert page.locator("#step").is_visible()
    assert page.locator("#score").inner_text() in ("0 of 1 right", "1 of 1 right")
    assert page.locator("#feedback").inner_text().startswith(FEEDBACK[answer_key])


def check_notes(page: Page) -> None:
    """A keyword that is ignored is told; runs without notes show none."""
    assert not page.locator("#notes").is_visible()
    page.select_option("#kind", "json")
    page.fill("#constraint", '{"enum": ["a"], "maxlength": 3}')
    page.click("#run")
    page.locator("#note-list", has_text="maxlength").wait_for()


def check_refusal(page: Page) -> None:
    """A refused request leaves nothing of the run before it, and the next run is shown again."""
    assert page.locator("#result").is_visible()
    page.select_option("#kind", "regex")
    page.fill("#constraint", "(")
    page.click("#run")
    page.locator("#status.error").wait_for()
    assert page.locator("#status").inner_text() and not page.locator("#result").is_visible()


def check_window(browser: Browser, name: str, options: argparse.Namespace) -> int:
    """Everything in one window; the number of steps compared. Raises AssertionError at the first difference."""
    with window(browser, name) as page:
        began = time.monotonic()
        page.goto(f"{options.url}/explorer")
        page.fill("#api-key", options.key)
        tqdm.write(f"{name}: opened in {time.monotonic() - began:.2f} s")
        count = 0
        for example in range(page.locator("#example option").count()):
            count += check_example(page, example)
            check_layout(page)
            page.keyboard.press("Home")
            for _ in range(2):
                page.keyboard.press("ArrowRight")
            screenshot(page, options, f"explorer-{name}-{example + 1}")
        for answer_key in FEEDBACK:
            check_prediction(page, answer_key)
            page.click("#run")
            page.locator("#run:enabled").wait_for()
            page.uncheck("#predict")
        check_notes(page)
        check_layout(page)
        check_refusal(page)
        check_layout(page)
        screenshot(page, options, f"explorer-{name}-refused")
    return count


def main() -> int:
    """Returns 0 when the page shows what the server answered; a difference ends with its assertion."""
    parser = options_of(__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="a running server (default %(default)s)")
    parser.add_argument("--key", default="", help="an API key, if the server has keys")
    options = parser.parse_args()
    with chromium(options) as browser:
        for name in tqdm(WINDOWS, unit="window"):
            count = check_window(browser, name, options)
            tqdm.write(f"{name}: {count} steps as the server answered them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
