"""Curves of long runs: buckets of steps, the steps that are zoomed to, and those that come while the page is open."""

import pytest
from page_histories import history_of, table

BUCKETS = [0, (1, 7, 7), (8, 12, 4), 13]
REWARD = [0.5, [0.25, -1.0, 2.0, 0.5], [3.0, 1.0, 3.0, 2.0], 1.5]
SEEN = """
  const history = page.RunHistory.of(given[0]);
  (given[1] ?? []).forEach((event) => history.add({ created_at: "2026-01-02T23:04:06Z", ...event }));
  const { drawn, averaged } = history;
  return [drawn.steps, drawn.columns.reward, averaged.columns.reward, [0, 5, 7, 12, 13, 99].map((step) => history.spanAt("step", step))];
"""


def test_a_bucket_is_drawn_as_its_extremes_the_later_one_last_and_smoothed_as_its_mean(script):
    steps, drawn, averaged, spans = script("history/run_history.js", SEEN, history_of(BUCKETS, reward=REWARD))
    assert steps == [0, 1, 7, 8, 12, 13]
    assert drawn == [0.5, 2.0, -1.0, 1.0, 3.0, 1.5]
    assert averaged == [0.5, 0.5, 0.5, 2.0, 2.0, 1.5]
    assert spans == [[0, 0], [1, 7], [1, 7], [8, 12], [13, 13], [99, 99]]


def test_a_bucket_without_a_value_is_a_gap(script):
    _, drawn, averaged, _ = script("history/run_history.js", SEEN, history_of([0, (1, 8, 8)], reward=[1.0, [None] * 4]))
    assert drawn == averaged == [1.0, None, None]


def test_steps_that_come_later_are_added_once(script):
    events = [
        {"id": id_, "type": "metrics", "data": {"step": step, "reward": 1.0}} for id_, step in ((13, 14), (14, 14), (15, 14), (16, 15))
    ]
    steps, drawn, *_ = script("history/run_history.js", SEEN, history_of(BUCKETS, reward=REWARD), events)
    assert steps[-3:] == [13, 14, 15]
    assert len(drawn) == len(steps)


def test_speeds_count_every_step_of_a_bucket(script):
    body = """
      const at = (seconds) => new Date(Date.parse("2026-01-02T00:00:00Z") + seconds * 1000).toISOString();
      const found = given[0];
      [found.metrics.first_at, found.metrics.last_at] = [[at(0), at(1)], [at(0), at(10)]];
      return page.RunHistory.of(found).rates(true);
    """
    rates = script("history/run_history.js", body, history_of([0, (1, 10, 10)], tokens=[8.0, [8.0] * 4]))
    assert rates == {"steps": pytest.approx(1.0), "tokens": pytest.approx(8.0)}


def test_held_out_scores_are_drawn_by_version_like_steps(script):
    body = "const { evaluations } = page.RunHistory.of(given[0]).drawn; return [evaluations.versions, evaluations.scores];"
    found = history_of([], evaluations=table([0, (8, 24, 3)], accuracy=[0.5, [0.75, 0.25, 0.75, 0.5]]))
    assert script("history/run_history.js", body, found) == [[0, 8, 24], [0.5, 0.25, 0.75]]


def test_a_mark_stands_at_the_step_that_the_gateway_knows_though_steps_are_merged(script):
    scorer = {"id": 5, "type": "scorer", "level": "info", "created_at": "2026-01-02T23:04:05Z", "data": {"from_group": 9}, "step": 6}
    spec = {"schedule": {"mode": "free", "dynamic_sampling": 1, "groups_per_step": 4}}
    turns = [{"from_group": 9, "scorer": {"grader": None, "service": "https://b.example"}}]
    body = "return page.scorerMarks(given[0], given[1], page.RunHistory.of(given[2])).map(({ step }) => step);"
    found = history_of(BUCKETS, reward=REWARD, events=[scorer])
    assert script("charts/marks.js history/run_history.js", body, spec, turns, found) == [6]


LIVE = """
  globalThis.setTimeout = (wake) => setImmediate(wake);
  const asked = [], answers = given[0], { signal } = new AbortController();
  globalThis.fetch = async (path) => {
    const query = new URLSearchParams(path.split("?")[1]);
    asked.push([path.split("?")[0].split("/").at(-1), query.get("from"), query.get("to"), query.get("after")]);
    const answer = answers.shift(), status = answer?.status ?? 200;
    return { ok: status === 200, status, headers: new Headers(), json: async () => answer };
  };
  const rest = async () => { for (let turn = 0; turn < 40; turn += 1) await new Promise((wake) => setImmediate(wake)); };
  const view = new page.ChartView();
  const live = new page.LiveHistory("run-1", view, signal, () => {});
  const add = (from, to) => { for (let step = from; step <= to; step += 1) live.add(event(step, step)); };
  const event = (id, step) => ({ id, type: "metrics", created_at: "2026-01-02T23:04:06Z", data: { step, reward: 1 } });
"""


def test_the_steps_that_are_zoomed_to_are_asked_for_exactly_and_the_whole_stays(script):
    body = f"""{LIVE}
      await live.read();
      view.change({{ zoom: [2, 5] }});
      const meanwhile = [...live.shown.steps];
      await rest();
      const zoomed = live.shown.steps;
      live.add(event(14, 14));
      view.change({{ zoom: [12, 13] }});
      view.change({{ zoom: null }});
      await rest();
      return [asked, meanwhile, zoomed, live.shown.steps];
    """
    answers = [history_of(BUCKETS, reward=REWARD), history_of([2, 3, 4, 5], reward=[1.0] * 4)]
    asked, meanwhile, zoomed, whole = script("history/live_history.js charts/chart_view.js", body, answers)
    assert asked == [["history", None, None, None], ["history", "2", "5", None]]
    assert meanwhile == [0, 1, 7, 8, 12, 13]
    assert zoomed == [2, 3, 4, 5]
    assert whole == [*meanwhile, 14]


def test_a_whole_that_is_exact_is_not_asked_for_again(script):
    body = f"{LIVE} await live.read(); view.change({{ zoom: [1, 3] }}); await rest(); return [asked.length, live.shown.steps];"
    whole = history_of([0, 1, 2, 3, 4], reward=[1.0] * 5)
    assert script("history/live_history.js charts/chart_view.js", body, [whole]) == [1, [0, 1, 2, 3, 4]]


def test_a_history_that_has_grown_long_is_read_anew_and_loses_no_event(script):
    body = f"""{LIVE}
      await live.read();
      add(14, 1019);
      await rest();
      return [asked.length, live.whole.steps.length, live.whole.steps.at(-1), live.newest];
    """
    answers = [history_of(BUCKETS, reward=REWARD), history_of([0, (1, 1010, 1010)], reward=[0.5, [1.0] * 4])]
    assert script("history/live_history.js charts/chart_view.js", body, answers) == [2, 3 + 9, 1019, 1019]


MODULES = "history/live_history.js charts/chart_view.js"
WHOLE = history_of(BUCKETS, reward=REWARD)
LATER = history_of([0, (1, 1010, 1010)], reward=[0.5, [1.0] * 4])


def test_the_steps_that_are_zoomed_to_are_shown_once_the_gateway_has_them_all(script):
    body = f"""{LIVE}
      await live.read();
      view.change({{ zoom: [2, 5] }});
      const seen = [];
      live.onChange = () => seen.push([asked.length, [...live.shown.steps]]);
      await rest();
      return seen;
    """
    part = history_of([2, 3], reward=[1.0] * 2, is_whole=False)
    exact = history_of([2, 3, 4, 5], reward=[1.0] * 4)
    assert script(MODULES, body, [WHOLE, part, exact]) == [[3, [2, 3, 4, 5]]]


def test_of_steps_that_came_meanwhile_none_is_missing_and_none_is_there_twice(script):
    body = f"""{LIVE}
      await live.read();
      view.change({{ zoom: [9, 9999] }});
      add(14, 15);
      await rest();
      add(16, 16);
      return [asked.at(-1), live.shown.steps];
    """
    part = history_of([9, 10, 11, 12, 13, 14], reward=[1.0] * 6) | {"newest": 15}
    assert script(MODULES, body, [WHOLE, part]) == [["history", "9", "9999", None], [9, 10, 11, 12, 13, 14, 15, 16]]


def test_with_the_whole_the_steps_that_are_zoomed_to_are_read_again_and_stay_until_then(script):
    body = f"""{LIVE}
      await live.read();
      view.change({{ zoom: [9, 9999] }});
      await rest();
      const seen = [];
      live.onChange = () => seen.push([asked.length, live.shown.steps.length]);
      add(14, 1014);
      await rest();
      return [asked.slice(1), seen];
    """
    part = history_of([9, 10, 11, 12, 13], reward=[1.0] * 5)
    again = history_of([9, (10, 1010, 1001)], reward=[1.0, [1.0] * 4])
    asked, seen = script(MODULES, body, [WHOLE, part, LATER, again])
    assert asked == [["history", "9", "9999", None], ["history", None, None, None], ["history", "9", "9999", None]]
    assert seen == [[3, 5 + 1001], [4, 3 + 4]]


def test_steps_that_a_hidden_page_did_not_see_are_among_those_that_are_zoomed_to(script):
    body = f"""{LIVE}
      await live.read();
      view.change({{ zoom: [9, 9999] }});
      await rest();
      await live.update();
      await rest();
      return live.shown.steps;
    """
    part = history_of([9, 10, 11, 12, 13], reward=[1.0] * 5)
    came = {"data": [{"id": 14, "type": "metrics", "created_at": "2026-01-02T23:04:06Z", "data": {"step": 14}}], "has_more": True}
    none = {"data": [], "has_more": False}
    again = history_of([9, (10, 1010, 1001)], reward=[1.0, [1.0] * 4])
    assert script(MODULES, body, [WHOLE, part, came, LATER, none, again]) == [9, 10, 1010]


def test_a_gateway_that_reads_anew_takes_nothing_from_the_charts(script):
    body = f"""{LIVE}
      await live.read();
      const seen = [];
      live.onChange = () => seen.push([asked.length, live.whole.steps.length, live.noticeOf("name-1")]);
      add(14, 1014);
      await rest();
      return seen;
    """
    less = history_of([0, 1, 2], reward=[1.0] * 3, is_whole=False)
    as_much = history_of([0, (1, 1014, 1014)], reward=[0.5, [1.0] * 4], is_whole=False)
    assert script(MODULES, body, [WHOLE, less, as_much, LATER]) == [[3, 3, ""], [4, 3 + 4, ""]]


def test_evaluations_beyond_the_zoom_are_not_among_what_is_zoomed_to(script):
    body = f"""{LIVE}
      const evaluate = (id, version) => live.add({{ ...event(id), type: "evaluation", data: {{ version, accuracy: 0.5 }} }});
      await live.read();
      evaluate(14, 4);
      evaluate(15, 14);
      view.change({{ zoom: [2, 5] }});
      await rest();
      evaluate(16, 5);
      evaluate(17, 15);
      const {{ evaluations, steps }} = live.shown.drawn;
      return [evaluations.versions, steps];
    """
    exact = history_of([2, 3, 4, 5], reward=[1.0] * 4, evaluations=table([3], accuracy=[0.25]))
    assert script(MODULES, body, [WHOLE, exact]) == [[3, 4, 5], [2, 3, 4, 5]]


def test_a_history_is_read_once_at_a_time(script):
    body = f"{LIVE} await Promise.all([live.read(), live.update(), live.read()]); return [asked.length, live.shown.steps.length];"
    assert script(MODULES, body, [WHOLE]) == [1, 6]


CRASH = {"status": 500, "detail": "the gateway failed; its log says why"}


def test_a_history_that_cannot_be_read_is_said_and_what_comes_is_shown_until_it_can(script):
    body = f"""{LIVE}
      await live.read();
      const said = [live.noticeOf("name-1")];
      add(1, 1001);
      await rest();
      said.push(live.noticeOf("name-1"), live.whole.steps.length);
      add(1002, 2000);
      await rest();
      said.push(asked.length);
      add(2001, 2002);
      await rest();
      return [said, asked.length, live.noticeOf("name-1"), live.whole.steps.length];
    """
    found = history_of([0, (1, 2001, 2001)], reward=[0.5, [1.0] * 4])
    said, asked, notice, steps = script(MODULES, body, [CRASH, CRASH, found])
    text = "The history of name-1 cannot be read, so its curves may lack steps; load the page again to read it. The reason: "
    assert said == [text + CRASH["detail"], text + CRASH["detail"], 1001, 2]
    assert (asked, notice, steps) == (3, "", 4)


def test_steps_that_are_zoomed_to_and_cannot_be_read_are_said(script):
    body = f"{LIVE} await live.read(); view.change({{ zoom: [2, 5] }}); await rest(); return [live.noticeOf('n'), live.shown.steps.length];"
    notice, steps = script(MODULES, body, [WHOLE, CRASH])
    assert notice.endswith(CRASH["detail"])
    assert steps == 6


def test_an_answer_whose_body_is_cut_off_is_asked_for_again(script):
    body = """
      globalThis.document.addEventListener = globalThis.document.removeEventListener = () => {};
      globalThis.setTimeout = (wake) => setImmediate(wake);
      const bodies = [() => JSON.parse('{"a": '), () => ({ a: 1 })];
      globalThis.fetch = async () => { const read = bodies.shift(); return { ok: true, status: 200, json: async () => read() }; };
      const problem = await page.fetchJson("/v1/runs").catch(({ status, message }) => [status, message]);
      bodies.unshift(() => JSON.parse(""));
      return [problem, await page.fetchPatiently("/v1/runs", new AbortController().signal)];
    """
    assert script("lib/api.js", body) == [[0, "The gateway's answer was cut off. See `gradbus status`."], {"a": 1}]


def test_a_bucket_is_smoothed_as_its_steps_would_be(script):
    body = """
      const { drawn, averaged } = page.RunHistory.of(given[0]);
      const steps = averaged.columns.reward.flatMap((value, at) => Array(drawn.weights[at]).fill(value));
      return [page.smoothed(averaged.columns.reward, 1 / 4, drawn.weights), page.smoothed(steps, 1 / 4)];
    """
    merged, every = script("charts/curves.js history/run_history.js", body, WHOLE)
    assert len(every) == 13
    assert merged == pytest.approx([every[at] for at in (0, 1, 7, 8, 11, 12)])


@pytest.mark.parametrize(
    ("has_extremes", "buckets"),
    [(True, ["-1 to 2", "-1 to 2", "1 to 3"]), (False, ["-1", "-1", "3"])],
)
def test_the_value_of_a_bucket_is_a_range_if_it_has_extremes_and_so_are_its_steps(script, has_extremes, buckets):
    body = """
      const chart = new page.Chart({ title: "Reward", explanation: "", series: [{ label: "reward" }] }, new page.ChartView());
      globalThis.getComputedStyle = () => ({ getPropertyValue: () => "" });
      let options, cursor = { idx: null };
      globalThis.uPlot = class { constructor(given) { options = given; this.cursor = cursor; } destroy() {} };
      chart.canvas.clientWidth = 300;
      const history = page.RunHistory.of(given[0]), { steps, columns } = history.drawn;
      chart.hasExtremes = given[1];
      chart.set([steps, columns.reward], { spanAt: (_, step) => history.spanAt("step", step) });
      return [0, 1, 2, 4].map((idx) => { options.hooks.setCursor[0]({ cursor: { idx } }); return chart.value.textContent; });
    """
    said = script("charts/chart.js charts/chart_view.js history/run_history.js", body, WHOLE, has_extremes)
    steps = ("1 to 7", "1 to 7", "8 to 12")
    assert said == ["0.5 \u00b7 step 0", *(f"{value} \u00b7 step {span}" for value, span in zip(buckets, steps, strict=True))]


def test_only_the_speed_is_a_curve_without_extremes(script):
    body = "return page.chartsOf(given[0]).filter(({ options }) => options.hasExtremes === false).map(({ options }) => options.title);"
    assert script("charts/run_charts.js", body, {"kind": "sft", "data": {}}) == ["Speed"]
