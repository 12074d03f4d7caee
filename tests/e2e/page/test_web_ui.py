"""The web UI in a real browser: headless Chromium, over the stack that all tests here share, with a run that trains meanwhile."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")

STEPS = 4000
MARKUP = "<img src=x onerror=alert(1)> and"
ONE_FIGURE = """() => {
  const figure = selector => document.querySelector(selector).textContent.match(/busy (\\d+ %)|^(\\d+ %)/)?.slice(1).join("");
  const diagram = ".diagram.wide .at-rollout .stat", sentence = ".time-breakdown .bottleneck + p";
  const rollouts = [diagram, sentence, ".workers tbody tr:nth-child(1) td:nth-child(3)"].map(figure);
  const trainer = [".time-breakdown .key li:nth-child(2)", ".workers tbody tr:nth-child(2) td:nth-child(3)"].map(figure);
  return [rollouts, trainer].every(found => found[0] !== undefined && new Set(found).size === 1);
}"""
UTILIZATION = """async () => {
  const { MeanUtilization, timeShares } = await import("/static/any/run/utilization.js");
  const utilization = new MeanUtilization();
  const mean = (share, time) => utilization.mean([{ worker: "rollout-0", role: "rollout", busy: share }], time);
  const [, live, later] = [mean(0, 0), mean(1, 5000), mean(1, 12000)];
  const run = { spec: { kind: "rl" }, progress: { shares: { generate: 0.9, score: 0.1, reference: 0.3, wait: 0.7 } } };
  return [live[0].busy, later[0].busy, timeShares(run, { shares: () => ({ wait: 0.2, train: 0.8 }) }, live)];
}"""
BARS = """async rewards => {
  const { sampleCard, rewardRange } = await import("/static/any/samples/sample_card.js");
  const samples = rewards.map(reward => ({ reward, id: "0.1", text: "", components: {}, verdict: "filtered", finish_reason: "stop" }));
  const shown = { colour: "", texts: null, range: rewardRange(samples) };
  const run = { id: "run-1", spec: { kind: "rl", algorithm: {} } };
  return samples.map(sample => sampleCard(run, sample, shown).querySelector("meter").value);
}"""


@pytest.fixture(scope="module")
def run_id(lab, spec, rows):
    """A run that trains as long as the tests look at it. What it trains on would be markup, if text could be."""
    held_out = rows([{"prompt": "sun and", "answer": "sun"}])
    data = {"train": rows([{"prompt": MARKUP, "answer": "x"}] * 8), "eval": held_out}
    evaluation = {"every": 10, "samples": 1}
    run_id = lab.submit(
        spec(
            name="watched",
            data=data,
            schedule={"steps": STEPS},
            evaluation=evaluation,
            checkpoint={"every": 50},
            algorithm={"filter": "none"},
        )
    )
    lab.until(run_id, lambda run: run["progress"]["step"] >= 3)
    yield run_id
    lab.client.cancel(run_id)


def test_the_command_prints_a_link_that_signs_in_once(lab, gradbus, browser, run_id):
    link = gradbus("open", run_id).stdout.strip()
    assert re.fullmatch(re.escape(lab.client.url) + rf"/sign-in#[\w-]{{43}}&run={run_id}", link)
    first, second = (browser.new_context() for _ in range(2))
    tab = first.new_page()
    tab.goto(link)
    sync_api.expect(tab.locator("h1")).to_have_text("watched")
    assert [(cookie["httpOnly"], cookie["sameSite"]) for cookie in first.cookies()] == [(True, "Strict")]
    assert tab.evaluate("document.cookie") == ""
    other = second.new_page()
    other.goto(link)
    sync_api.expect(other.locator("#message")).to_contain_text("used already")
    assert second.cookies() == []
    other.goto(lab.client.url)
    sync_api.expect(other.locator("main")).to_contain_text("gradbus open")
    for context in (first, second):
        context.close()


def test_a_run_is_watched_live(page, lab, run_id):
    page.opens("/runs/{run}", run_id)
    page.grows(2)
    page.grows(page.points() + 3)
    sync_api.expect(page.tab.locator(".chart canvas")).to_have_count(page.tab.locator(".chart").count())
    page.sees(".chip", "Running")
    page.sees(".workers", "rollout-0")
    page.sees(".events li", re.compile(r"version \d+: reward"))
    page.sees(".bottleneck", re.compile("-bound|In balance"))
    page.sees(".diagram.wide", re.compile(r"samples/s"))
    page.tab.wait_for_function(ONE_FIGURE)
    page.sees(".diagram.wide", re.compile(r"workers run version \d+"))
    lab.client.pause(run_id)  # what follows looks at what is there


def test_samples_stand_side_by_side_and_each_has_a_timeline(page, run_id):
    page.tab.goto(f"{page.url}/#/runs/{run_id}/samples?steps=0,2&at=1")
    page.sees(".column h2", "Step 2")
    page.sees(".column", "mean reward")
    sync_api.expect(page.tab.locator(".column")).to_have_count(2)
    sync_api.expect(page.tab.locator(".column").first.locator(".sample")).to_have_count(4)
    sync_api.expect(page.tab.locator(".prompt pre").first).to_have_text(MARKUP)
    page.tab.get_by_label("Show", exact=True).select_option("high")
    page.sees(".of-prompt pre", MARKUP)
    sync_api.expect(page.tab.locator(".columns")).not_to_contain_text("mean reward")  # of a selection it would say nothing
    rewards_shown = page.tab.locator(".column").first.locator(".reward")
    sync_api.expect(rewards_shown).to_have_count(12)
    rewards = [float(text) for text in rewards_shown.all_text_contents()]
    assert rewards == sorted(rewards, reverse=True)
    page.tab.get_by_label("Colour").select_option("probability")
    page.sees(".token", "")
    page.tab.locator(".response-text").first.click()
    page.sees("h1", "Sample")
    sync_api.expect(page.tab.locator("main")).not_to_contain_text("null")
    for stage in ("Dispatched", "Generated", "Scored", "Admitted", "Trained", "Trace"):
        page.sees(".timeline b", stage)
    page.sees(".timeline", "after it was admitted")


def test_a_rewards_bar_is_as_long_as_it_is_worth(page, run_id):
    page.opens("/", run_id)
    for rewards, bars in (([0, 0], [0, 0]), ([0, 2], [0, 1]), ([-1, 0], [0, 1]), ([1, 0.5], [1, 0.5])):
        assert page.tab.evaluate(BARS, rewards) == bars


def test_how_busy_workers_are_is_a_mean_over_ten_seconds_and_the_trainers_time_that_of_its_steps(page, run_id):
    page.opens("/", run_id)
    assert page.tab.evaluate(UTILIZATION) == [0.5, 1, {"generate": 0.5, "score": 0.1, "reference": 0.3, "wait": 0.2, "train": 0.8}]


def test_every_group_of_a_prompt_is_found(page, run_id):
    page.opens("/runs/{run}/samples", run_id)
    page.tab.get_by_role("button", name="every group of this prompt").first.click()
    page.sees(".controls", "every group")
    sync_api.expect(page.tab.locator(".column").nth(1)).to_be_visible()
    assert "row=" in page.tab.url


def test_charts_zoom_by_brush_and_by_keys_and_lead_to_the_samples_of_a_step(page, run_id):
    page.opens("/runs/{run}", run_id)
    page.grows(2)
    canvas = page.tab.locator(".chart .u-over").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    left, middle = box["x"], box["y"] + box["height"] / 2
    page.tab.mouse.move(left + 2, middle)
    page.tab.mouse.down()
    page.tab.mouse.move(left + box["width"] - 2, middle, steps=4)
    page.tab.mouse.up()
    page.tab.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    page.tab.locator(".chart").first.focus()
    page.tab.keyboard.press("0")
    page.tab.wait_for_url(re.compile(r"/runs/[a-z0-9-]+$"))
    page.tab.get_by_label("Values").select_option("log")
    page.tab.get_by_label("Smoothing").select_option("none")
    page.tab.wait_for_url(re.compile("scale=log&smoothing=none"))
    page.tab.locator(".chart").first.focus()
    page.tab.keyboard.press("Home")
    page.sees(".chart-value", re.compile("step 0$"))
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_url(re.compile(r"/samples\?steps=0"))


def test_runs_are_compared_from_the_list_on(page, lab, spec, run_id):
    other = lab.train(spec(name="another", seed=7, schedule={"steps": 3}))["id"]
    page.opens("/", run_id)
    for run in (run_id, other):
        page.tab.locator(f"#pick-{run}").focus()
        page.tab.keyboard.press("Space")
    page.tab.locator("#compare").focus()
    page.tab.keyboard.press("Enter")
    page.sees("h1", "Comparison of runs")
    page.sees(".differences tr", re.compile("seed.*7"))
    page.tab.wait_for_selector(".chart canvas")
    page.sees(".chart-value", re.compile(r"[\d.]+ / [\d.]+"))
    page.tab.get_by_role("button", name="Take another out").click()
    page.sees("main", "Choose two runs or more.")


def test_tags_and_a_note_are_written_on_a_run_and_select_the_runs_of_the_list(page, lab, run_id):
    page.opens("/runs/{run}", run_id)
    page.tab.get_by_role("button", name="Add tags or a note").focus()
    page.tab.keyboard.press("Enter")
    page.tab.keyboard.type("baseline sweep/3")
    page.tab.keyboard.press("Tab")
    page.tab.keyboard.type(MARKUP)
    page.tab.get_by_role("button", name="Save").click()
    page.sees(".run-note", MARKUP)
    run = lab.client.run(run_id)
    assert (run.tags, run.note) == (["baseline", "sweep/3"], MARKUP)
    page.tab.locator(".annotations .tag").filter(has_text="sweep/3").click()
    page.sees("h1", "Runs tagged sweep/3")
    sync_api.expect(page.tab.locator(".runs tbody tr")).to_have_count(1)


def test_in_a_free_schedule_columns_are_groups_and_no_step_is_said_to_own_one(page, lab, spec):
    run = lab.train(spec(schedule={"mode": "free", "steps": 3}))
    page.tab.goto(f"{page.url}/#/runs/{run['id']}/samples?steps=0,1&show=high")
    page.sees(".column h2", "Group 4")
    page.sees(".controls", "Steps, about")
    sync_api.expect(page.tab.get_by_label("Show", exact=True).locator("option")).to_have_text(
        ["one prompt, all its samples", "a search of all samples"]
    )
    page.tab.locator(".response-text").first.click()
    page.sees(".timeline", "The log decides by which step")


def test_a_list_without_runs_says_how_to_submit_one(page):
    page.tab.route(re.compile(r"/v1/runs\?"), lambda route: route.fulfill(json={"data": [], "has_more": False}))
    page.tab.goto(page.url)
    page.sees(".empty", "No runs yet")
    page.sees(".empty pre", "gradbus run my.toml --follow")


def listed(number):
    """A run as the list of runs has it; later runs have higher numbers."""
    progress = {"step": 0, "reward": None, "accuracy": None}
    known = {"tags": [], "reason": "", "waiting_for": "", "steps": 3, "created_at": "2026-11-01T08:00:00Z", "progress": progress}
    return {"id": f"run-{number:012x}-000000", "name": f"number-{number}", "state": "queued", **known}


def test_a_long_list_stays_whole_and_current_while_more_runs_are_submitted(page):
    runs = [listed(number) for number in reversed(range(100))]

    def answer(route):
        asked = {name: values[0] for name, values in parse_qs(urlsplit(route.request.url).query).items()}
        older = [run for run in runs if run["id"] < asked.get("after", "run-g")]
        shown = older[: int(asked["limit"])]
        route.fulfill(json={"data": shown, "has_more": len(older) > len(shown), "next_after": shown[-1]["id"]})

    page.tab.route(re.compile(r"/v1/runs\?"), answer)
    page.tab.goto(page.url)
    page.sees(".runs", "number-99")
    page.tab.get_by_role("button", name="Older runs").click()
    page.sees(".runs", "number-40")
    runs[:0] = [listed(number) for number in (104, 103, 102, 101, 100)]
    runs[50] |= {"state": "succeeded"}
    page.sees(".runs", "number-104")
    assert page.tab.locator(".runs tbody a").all_text_contents() == [run["name"] for run in runs[:60]]
    sync_api.expect(page.tab.locator(".runs tbody tr").nth(50)).to_contain_text("Succeeded")


def test_a_run_without_a_step_shows_the_samples_that_could_not_be_scored(page, lab, spec):
    grader = {"type": "python", "source": "def grade(sample, item):\n    raise ValueError('no dictionary')\n"}
    run = lab.ends(lab.submit(spec(reward={"grader": grader}, schedule={"mode": "free", "steps": 3})), "failed")
    assert run["progress"]["step"] == 0
    page.opens("/runs/{run}", run["id"])
    page.sees(".note.bad", "could be trained")
    page.sees(".time-breakdown", "The run ended before its first step.")
    page.sees(".diagram.wide", "last version 0")
    page.opens("/runs/{run}/samples", run["id"])
    sync_api.expect(page.tab.locator(".sample")).to_have_count(4)
    page.sees(".reward", "invalid")


def test_the_keyboard_is_enough(page, run_id):
    page.opens("/", run_id)
    page.tab.reload()
    page.tab.wait_for_selector(".runs")
    page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("document.activeElement.className") == "skip"
    page.tab.locator(f"#to-{run_id}").focus()
    page.tab.keyboard.press("Enter")
    page.sees("h1", "watched")
    page.tab.wait_for_function("document.activeElement.id === 'main'")


def test_another_name_for_this_machine_shows_nothing(lab, browser):
    context = browser.new_context()
    tab = context.new_page()
    answer = tab.goto(f"http://evil.example:{lab.client.url.rpartition(':')[2]}/")
    assert answer.status == 421
    assert "GRADBUS_SERVED_HOSTS" in tab.text_content("body")
    context.close()


def test_the_web_ui_pauses_resumes_and_after_a_question_cancels(page, lab, run_id):
    lab.client.pause(run_id)
    page.opens("/runs/{run}", run_id)
    page.tab.get_by_role("button", name="Resume").click()
    page.sees(".chip", "Running")
    page.tab.get_by_role("button", name="Pause").click()
    page.sees(".chip", "Paused")
    page.tab.get_by_role("button", name="Cancel run").click()
    page.tab.get_by_role("button", name="Keep it running").click()
    assert lab.client.run(run_id).desired == "paused"
    page.tab.get_by_role("button", name="Cancel run").click()
    page.tab.get_by_role("button", name="Cancel the run").click()
    page.sees(".chip", "Cancelled")
    assert lab.ends(run_id, "cancelled")["desired"] == "cancelled"
    sync_api.expect(page.tab.get_by_role("button", name="Pause")).to_be_hidden()
    page.tab.get_by_role("button", name="Sign out").click()
    page.sees("main", "gradbus open")
