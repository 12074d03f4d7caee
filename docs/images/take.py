"""Takes the pictures of the web UI: `python docs/images/take.py --state FOLDER`, beside a stack that is up and trains nothing else.

It trains the example of the addition and looks at it in a headless Chromium; playwright and a `chromium` on the PATH are needed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from gradbus.client import Client

IMAGES = Path(__file__).resolve().parent
EXAMPLE = IMAGES.parents[1] / "examples/addition"
WIDTH = 1280
STEPS = 120
POLL_SECONDS = 0.2


def take(page: Page, url: str, name: str, height: int, ready: str) -> None:
    """Writes the picture `name` of a view as soon as it has an element that matches `ready`."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.goto(url)
    page.wait_for_selector(ready)
    page.wait_for_timeout(3000)  # the rates are means over seconds
    page.screenshot(path=str(IMAGES / name))


def main() -> None:
    """Trains, and takes both pictures while it does."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--state", type=Path, required=True)
    options = parser.parse_args()
    subprocess.run([sys.executable, str(EXAMPLE / "make_model.py")], check=True)
    with Client.discover(options.state) as client, sync_playwright() as driver:
        run = client.submit(EXAMPLE / "addition.toml").id
        while client.run(run).progress.step < STEPS:
            time.sleep(POLL_SECONDS)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(color_scheme="light").new_page()
        page.goto(client.sign_in_link())
        page.wait_for_selector("text=Sign out")
        take(page, f"{client.url}/#/runs/{run}", "web-ui-run.png", 1330, ".chart canvas")
        last = client.run(run).progress.step - 1
        samples = f"{client.url}/#/runs/{run}/samples?steps=0,{last // 3},{last}&at=1&show=prompt&colour=advantage"
        take(page, samples, "web-ui-samples.png", 780, ".sample")
        browser.close()
        client.cancel(run)


if __name__ == "__main__":
    main()
