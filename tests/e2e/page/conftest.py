"""Headless Chromium, and a tab of it that is signed in to the stack that all tests here share."""

import os
import shutil
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIMEOUT_MS = 120_000


def playwright():
    """The package, whose waits have the time that a busy machine needs."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    sync_api.expect.set_options(timeout=TIMEOUT_MS)
    return sync_api


@pytest.fixture(scope="package")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium is on the PATH")
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with playwright().sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*sandbox, "--host-resolver-rules=MAP evil.example 127.0.0.1"])
        yield browser
        browser.close()


class Tab:
    """A browser tab that keeps its console errors and its requests to other origins."""

    def __init__(self, lab, context):
        self.url = lab.client.url
        self.tab = context.new_page()
        self.tab.set_default_timeout(TIMEOUT_MS)
        self.complaints = []
        self.foreign = []
        self.tab.on("console", lambda message: self.complaints.append(message.text) if message.type in {"error", "warning"} else None)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.tab.on("request", lambda request: None if request.url.startswith(self.url) else self.foreign.append(request.url))

    def sees(self, selector, text):
        """Waits until an element there has the text."""
        playwright().expect(self.tab.locator(selector).filter(has_text=text).first).to_be_visible()

    def opens(self, view, run_id=""):
        """Goes to a view, and waits until it shows what it is about."""
        self.tab.goto(f"{self.url}/#{view.format(run=run_id)}")
        begin = {"/": ".runs", "/plan": "#plan-spec", "/runs/{run}": ".chart", "/compare?runs={run}": ".chart"}
        self.tab.wait_for_selector(begin.get(view, ".sample"))

    def grows(self, above):
        """Waits until the reward's curve has more points than `above`."""
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while self.points() <= above:
            assert time.monotonic() < deadline, f"the curve stays at {self.points()} points"
            self.tab.wait_for_timeout(100)

    def points(self):
        """Steps that the reward's curve shows."""
        return int(self.tab.locator(".chart-canvas").first.get_attribute("data-points") or 0)


@pytest.fixture(scope="package")
def signed_in(lab, browser):
    """A browser that is signed in."""
    context = browser.new_context()
    page = Tab(lab, context)
    page.tab.goto(lab.client.sign_in_link())
    page.sees("button", "Sign out")  # the script redeems the code after it has loaded
    page.tab.close()
    yield context
    context.close()


@pytest.fixture
def page(lab, signed_in):
    page = Tab(lab, signed_in)
    yield page
    page.tab.close()
    assert (page.complaints, page.foreign) == ([], [])
