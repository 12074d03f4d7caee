"""Every view as its users may meet it: by day and by night, on a phone, with odd texts, and while something behind it breaks."""

import asyncio
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradbus.bus import Bus, BusSettings, EventLog
from gradbus.bus.batch import publish_batch
from gradbus.client import Client
from gradbus.deploy.credentials import Credentials

sync_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")

SAMPLES = "/runs/{run}/samples"
COLOURED = tuple(f"{SAMPLES}?colour={colour}" for colour in ("probability", "advantage"))
VIEWS = ("/", "/plan", "/runs/{run}", "/compare?runs={run}", SAMPLES, *COLOURED, f"{SAMPLES}/0.1")
RIGHT_TO_LEFT = "\u05de\u05d4 and 12 + 3"
MARKUP = "<b>sun</b><script>alert(1)</script>"
TEXTS = (Path(__file__).parent / "texts.js").read_text()
NAMELESS = """() => [...document.querySelectorAll("button, a[href], input, select, textarea, progress, meter, [role=group]")]
  .filter(e => e.checkVisibility())
  .filter(e => !(e.getAttribute("aria-label") || [...(e.labels ?? [])].map(label => label.textContent).join("") || e.textContent).trim())
  .map(e => e.outerHTML)"""
CUT_OFF = """width => [...document.querySelectorAll("h1, a, button, .chart, .sample, input, select")]
  .filter(e => e.checkVisibility() && !e.closest(".wide-table") && e.getBoundingClientRect().right > width).map(e => e.outerHTML)"""
LONG = 3000


@pytest.fixture(scope="module")
def odd(lab, spec, rows):
    """A run with the longest name, tags and a note, whose prompts are markup, right to left, and long."""
    prompts = [MARKUP, RIGHT_TO_LEFT, "sun" * 12, "moon and"]
    data = {"train": rows({"prompt": prompt, "answer": "x" * 500 if prompt == MARKUP else "sun"} for prompt in prompts)}
    run = lab.train(spec(name="n" * 63, data=data, algorithm={"filter": "none"}))
    lab.client.annotate(run["id"], add_tags=["t" * 40], note=f"{MARKUP}\n{RIGHT_TO_LEFT}\n{'w' * 300}")
    return run["id"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_by_day_and_by_night(page, odd, scheme):
    page.tab.emulate_media(color_scheme=scheme)
    for view in VIEWS:
        page.opens(view, odd)
        page.tab.wait_for_load_state("networkidle") if view != "/runs/{run}" else page.sees(".chart-value", re.compile(r"\d"))
        background = page.tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
        assert [found for found in page.tab.evaluate(TEXTS) if found["contrast"] < 4.5] == [], view


def test_at_a_phones_width_nothing_is_cut_off(page, odd):
    page.tab.set_viewport_size({"width": 360, "height": 740})
    for view in VIEWS:
        page.opens(view, odd)
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= 360, view
        assert page.tab.evaluate(CUT_OFF, 360) == [], view


def test_every_control_has_a_name_and_every_view_a_heading(page, odd):
    for view in VIEWS:
        page.opens(view, odd)
        assert page.tab.evaluate(NAMELESS) == [], view
        assert page.tab.locator("h1").count() == 1, view


def test_texts_stay_texts_and_run_in_their_own_direction(page, odd):
    page.opens("/runs/{run}", odd)
    page.sees(".run-note", MARKUP)
    page.tab.goto(f"{page.url}/#/runs/{odd}/samples?show=search&text=and")
    page.sees(".of-prompt pre", RIGHT_TO_LEFT)
    direction = "e => [getComputedStyle(e).unicodeBidi, document.querySelectorAll('main b, main script').length]"
    assert page.tab.locator(".of-prompt pre").first.evaluate(direction) == ["plaintext", 0]


FOUND = "links => links.map(link => link.href)"
IS_ANOTHER = "before => ![undefined, ...before].includes(document.querySelector('.response-text')?.href)"


def test_a_search_goes_on_after_the_samples_that_it_found(page, odd):
    page.tab.goto(f"{page.url}/#/runs/{odd}/samples?show=search")
    sync_api.expect(page.tab.locator(".sample")).to_have_count(24)
    found = page.tab.locator(".response-text").evaluate_all(FOUND)
    page.tab.get_by_role("button", name="Search further").click()
    page.tab.wait_for_url(re.compile("from="))
    page.tab.wait_for_function(IS_ANOTHER, arg=found)
    assert not set(found) & set(page.tab.locator(".response-text").evaluate_all(FOUND))


async def write_steps(state, run):
    ports, secrets = json.loads((state / "ports.json").read_text()), Credentials(state / "secrets")
    bus = await Bus.connect(BusSettings(f"nats://127.0.0.1:{ports['nats']}", "conductor", secrets.nats_password("conductor")), "test")
    log = EventLog(bus, run)
    for step in range(3, LONG):
        log.emit("metrics", f"step {step}", {"step": step, "reward": 9.0 if step == 1234 else 0.5, "reward_std": 0.1, "tokens": 8})
        if step % 400 == 0 or step == LONG - 1:
            await publish_batch(bus.client, log.take())
    await bus.close()


@pytest.fixture
def long_run(lab, spec):
    """A run that ended, with thousands of steps in its history, one of them a spike."""
    run = lab.train(spec(name="long", schedule={"steps": 3}))["id"]
    with ThreadPoolExecutor() as pool:  # the browser's driver has a loop in this thread
        pool.submit(asyncio.run, write_steps(lab.state, run)).result()
    return run


def test_a_long_run_is_few_points_its_spike_is_seen_and_what_is_zoomed_to_is_exact(page, long_run):
    page.opens("/runs/{run}", long_run)
    page.grows(100)
    assert page.points() <= 2 * 500 + 2 + 50
    chart = page.tab.locator(".chart").first
    page.tab.get_by_label("first step shown").fill("1200")
    page.tab.get_by_label("last step shown").fill("1299")
    page.tab.keyboard.press("Tab")
    page.tab.wait_for_url(re.compile("from=1200&to=1299"))
    sync_api.expect(chart.locator(".chart-canvas")).to_have_attribute("data-points", "100")
    chart.focus()
    page.tab.keyboard.press("Home")
    for _ in range(34):
        page.tab.keyboard.press("ArrowRight")
    page.sees(".chart-value", re.compile(r"^9\.000 \u00b7 step 1234$"))
    page.tab.keyboard.press("0")
    page.grows(100)


def test_two_tabs_show_the_same_run(page, signed_in, lab, odd):
    page.opens("/runs/{run}", odd)
    other = signed_in.new_page()
    other.goto(f"{page.url}/#/runs/{odd}")
    other.get_by_role("button", name="Edit tags and note").click()
    other.get_by_label("Note").fill("from the other tab")
    other.get_by_role("button", name="Save").click()
    sync_api.expect(other.locator(".run-note")).to_have_text("from the other tab")
    assert lab.client.run(odd).note == "from the other tab"
    page.tab.reload()
    page.sees(".run-note", "from the other tab")
    other.close()


def test_a_page_survives_a_gateway_that_is_started_again(signed_in, lab, spec):
    run = lab.submit(spec(name="through", schedule={"steps": 2000}, algorithm={"filter": "none"}))
    lab.until(run, lambda found: found["progress"]["step"] >= 2)
    tab = signed_in.new_page()
    tab.goto(f"{lab.client.url}/#/runs/{run}")
    sync_api.expect(tab.locator(".chart-value").first).to_contain_text(re.compile(r"\d"))
    before = int(tab.locator(".chart-canvas").first.get_attribute("data-points"))
    os.kill(json.loads((lab.state / "stack.json").read_text())["processes"]["gateway"]["pid"], signal.SIGKILL)
    problem = tab.locator(".note.bad:not(.hidden)").filter(has_text="does not respond")
    sync_api.expect(problem).to_be_visible()
    sync_api.expect(problem).to_have_count(0)
    tab.wait_for_function("before => Number(document.querySelector('.chart-canvas').dataset.points) > before", arg=before + 2)
    tab.close()
    lab.client.cancel(run)


def test_a_page_whose_key_is_revoked_says_so(lab, gradbus, browser, odd):
    key = gradbus("keys", "create", "for-a-while", "--scope", "runs:read").stdout.split()[-1]
    with Client(lab.client.url, key) as client:
        link = client.sign_in_link(odd)
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(link)
    sync_api.expect(tab.locator("h1")).to_have_text("n" * 63)
    tab.goto(f"{lab.client.url}/#/")
    assert gradbus("keys", "revoke", key.partition(".")[0]).returncode == 0
    sync_api.expect(tab.locator("main")).to_contain_text("The session has ended")
    context.close()
