"""`/docs` and the status page in a real browser, over tiers that follow a script. Needs the extra `browser`.

Opens every operation of `/docs` and prints how long each takes, sends a request from the page without an API key and
with one, and looks at the status page of a server with keys and of one without.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, Page

from deployments.http.tenants import ApiKey, Tenants
from tests.deployments.applications import application
from tests.deployments.browser import WINDOWS, check_layout, chromium, options_of, screenshot, window
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.deployments.test_status import REPLICA, SCHEMAS, answer_of, compiler_report, ready

API_KEY = "a-key-of-the-tests"
NEXT_FRAME = "() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)))"


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The address of a server of the application."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def application_with(tenants: Tenants) -> tuple[FastAPI, FakeCompiler]:
    compiler, replica = FakeCompiler(), FakeReplica()
    compiler.answers = [answer_of(0.125)]
    replica.reports = [REPLICA]
    return application(compiler, replica, tenants=tenants), compiler


def operations(page: Page) -> Iterator[tuple[str, Any]]:
    for block in page.locator(".opblock").all():
        method, path = block.locator(".opblock-summary-method"), block.locator(".opblock-summary-path")
        yield f"{method.inner_text()} {path.inner_text()}", block


def check_documentation(browser: Browser, url: str, options: argparse.Namespace) -> None:
    """Opens every operation within the seconds that were asked for, and without a request to anybody else."""
    with window(browser, "light") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        began = time.monotonic()
        page.goto(f"{url}/docs")
        page.locator(".opblock").first.wait_for()
        print(f"{time.monotonic() - began:6.2f} s  /docs")
        late = []
        for number, (name, block) in enumerate(operations(page), 1):
            began = time.monotonic()
            block.locator(".opblock-summary-control").click()
            block.locator(".responses-wrapper").wait_for()
            page.evaluate(NEXT_FRAME)
            seconds = time.monotonic() - began
            print(f"{seconds:6.2f} s  {name}", flush=True)
            late += [name] if seconds > options.seconds else []
            screenshot(page, options, f"docs-{number:02}")
            block.locator(".opblock-summary-control").click()
        assert [one for one in asked if not one.startswith((url, "data:", "blob:"))] == []
        assert late == [], f"not open within {options.seconds} s: {', '.join(late)}"


def execute(page: Page, status: str) -> None:
    """Sends the first example of a chat completion from the page, and compares the status of the answer."""
    _, block = next(operations(page))
    block.locator("button.execute").click()
    block.locator(".live-responses-table .response-col_status", has_text=status).wait_for()


def check_try_it_out(browser: Browser, url: str, options: argparse.Namespace) -> None:
    with window(browser, "dark") as page:
        page.goto(f"{url}/docs")
        page.locator(".opblock").first.locator(".opblock-summary-control").click()
        execute(page, "401")
        page.locator(".auth-wrapper > button.authorize").click()
        page.locator(".modal-ux input").fill(API_KEY)
        page.locator(".modal-ux button.authorize").click()
        page.locator(".modal-ux button.btn-done").click()
        execute(page, "200")
        screenshot(page, options, "docs-answer")


def open_status(page: Page, url: str, state: str) -> None:
    began = time.monotonic()
    page.goto(url)
    page.locator(state).wait_for()
    print(f"{time.monotonic() - began:6.2f} s  / until {state}")


def check_status(browser: Browser, url: str, name: str, options: argparse.Namespace) -> None:
    """The status page of a server with keys, by keyboard alone."""
    with window(browser, name) as page:
        open_status(page, url, "#locked")
        check_layout(page)
        screenshot(page, options, f"status-locked-{name}")
        for key, state in (("wrong", "#key-error:not(:empty)"), (API_KEY, "table")):
            page.locator("#api-key").focus()
            page.keyboard.press("Control+A")
            page.keyboard.type(key)
            page.keyboard.press("Enter")
            page.locator(state).first.wait_for()
            check_layout(page)
            screenshot(page, options, f"status-{'wrong' if key == 'wrong' else 'open'}-{name}")
        assert page.locator("#key-error").inner_text() == ""
        texts = page.locator("main").inner_text()
        assert (
            "street, town" in texts
            and "json_schema" in texts
            and "Person" in texts
            and "the reason of a refusal" in texts
        )
        open_status(page, url, "table >> nth=0")
        page.goto(f"{url}/explorer/")
        assert page.locator("#api-key").input_value() == API_KEY
        page.get_by_role("link", name="Status").click()
        page.locator("table").first.wait_for()
        page.locator("#forget").focus()
        page.keyboard.press("Enter")
        page.locator("#locked").wait_for()
        page.reload()
        assert page.locator("#api-key").input_value() == "" and page.locator("#locked").is_visible()
    with window(browser, name) as page:  # another tab has no key
        open_status(page, url, "#locked")


def check_without_keys(browser: Browser, url: str, name: str, options: argparse.Namespace) -> None:
    with window(browser, name) as page:
        open_status(page, url, "table >> nth=0")
        assert page.locator("#api-key").count() == 0
        check_layout(page)
        screenshot(page, options, f"status-without-keys-{name}")


def use_grammars(page: Page, url: str, compiler: FakeCompiler, key: str | None) -> None:
    """Requests of which the status page tells: grammars that are compiled, and a refusal."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    seconds = 0.1
    grammars = []
    for specification in SCHEMAS:
        answer = page.request.post(f"{url}/v1/grammars", data={"specification": specification}, headers=headers)
        grammars.append(ready(answer.json()["key"], seconds := seconds * 2))
    compiler.reports = [compiler_report(3, *grammars, grammars[0])]
    compiled, error = compiler.answers, {"code": "unsupported_schema", "message": "the reason of a refusal"}
    compiler.answers = [{"status": "refused", "error": {**error, "pointer": "/properties/name/not"}}]
    answer = page.request.post(f"{url}/v1/grammars", data={"specification": SCHEMAS[0]}, headers=headers)
    assert answer.status == 400
    compiler.answers = compiled


def main() -> int:
    """Returns 0 if the pages are as they should be; the first difference ends the program with its assertion."""
    parser = options_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="to open an operation (default %(default)s)")
    options = parser.parse_args()
    keys = [ApiKey(tenant="tests", sha256=hashlib.sha256(API_KEY.encode()).hexdigest())]
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(chromium(options))
        addresses = []
        for tenants, key in ((Tenants(keys), API_KEY), (Tenants(), None)):
            app, compiler = application_with(tenants)
            addresses.append(stack.enter_context(served(app)))
            page = browser.new_page()
            use_grammars(page, addresses[-1], compiler, key)
            page.close()
        for name in WINDOWS:
            check_status(browser, addresses[0], name, options)
            check_without_keys(browser, addresses[1], name, options)
        check_try_it_out(browser, addresses[0], options)
        check_documentation(browser, addresses[1], options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
