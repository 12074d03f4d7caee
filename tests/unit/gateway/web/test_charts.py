"""How charts are looked at: zoom, scale, smoothing, the cursor by keyboard, and where scorers changed."""

import pytest


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("", "#/runs/run-1"),
        ("from=10&to=20&scale=log&smoothing=none", "#/runs/run-1?from=10&to=20&scale=log&smoothing=none"),
        ("from=20&to=10", "#/runs/run-1"),
        ("from=x&to=10&scale=cubic&smoothing=toString", "#/runs/run-1"),
        ("to=10", "#/runs/run-1"),
    ],
)
def test_the_view_of_charts_is_kept_in_the_address(script, address, kept):
    body = "return page.addressOf('/runs/run-1', new page.ChartView(new URLSearchParams(given[0])).parameters());"
    assert script("charts/chart_view.js", body, address) == kept


def test_who_listens_is_told_what_changed(script):
    body = """
      const view = new page.ChartView(), heard = [];
      view.listen((changed) => heard.push([changed, view.zoom, view.scale]));
      view.change({ zoom: [3, 9] });
      view.change({ scale: "log", zoom: null });
      return heard;
    """
    assert script("charts/chart_view.js", body) == [[["zoom"], [3, 9], "linear"], [["scale", "zoom"], None, "log"]]


@pytest.mark.parametrize(
    ("key", "shown", "at", "becomes"),
    [
        ("+", [0, 100], 50, [25, 75]),
        ("+", [0, 100], 0, [0, 50]),
        ("=", [20, 60], 60, [40, 60]),
        ("-", [25, 75], 50, "whole"),
        ("-", [40, 60], 45, [35, 75]),
        ("-", [90, 100], 95, [85, 100]),
        ("0", [3, 9], 5, "whole"),
        ("Escape", [3, 9], 5, "whole"),
        ("Shift+ArrowRight", [20, 40], 30, [25, 45]),
        ("Shift+ArrowLeft", [3, 23], 5, [0, 20]),
        ("Shift+ArrowRight", [70, 90], 5, [75, 95]),
        ("Shift+ArrowRight", [80, 100], 5, "same"),
        ("+", [5, 8], 6, "same"),
        ("+", [5, 5], 5, "same"),
        ("a", [3, 9], 5, "same"),
    ],
)
def test_keys_zoom_around_the_cursor_and_stay_within_the_run(script, key, shown, at, becomes):
    body = """
      const [key, shown, at] = given, range = page.zoomed(key, shown, [0, 100], at);
      return range === null ? "whole" : range ?? "same";
    """
    assert script("charts/chart_view.js", body, key, shown, at) == becomes


def test_keys_move_the_cursor_over_the_steps_that_are_shown(script):
    body = """
      const steps = [0, 2, 4, 6, 8], shown = [1, 7], move = (key, at) => page.moved(key, steps, shown, at) ?? "not a move";
      return [move("Home", null), move("End", 0), move("ArrowRight", null), move("ArrowLeft", null), move("ArrowRight", 2),
              move("ArrowRight", 3), move("ArrowLeft", 1), move("x", 2), page.moved("Home", steps, [9, 12], null) ?? "no step"];
    """
    assert script("charts/chart_view.js", body) == [1, 3, 1, 3, 3, 3, 1, "not a move", "no step"]


@pytest.mark.parametrize(
    ("start", "end", "zoom"),
    [("3", "9", [3, 9]), ("3", "", [3, 40]), ("", "9", [0, 9]), ("", "", None), ("9", "3", None), ("x", "5", None)],
)
def test_a_field_of_the_zoom_that_is_empty_is_an_end_of_the_run(script, start, end, zoom):
    assert script("charts/chart_grid.js", "return page.zoomOf(...given, 40);", start, end) == zoom


@pytest.mark.parametrize(
    ("zoom", "last", "fields"),
    [(None, 40, ["", ""]), ([3, 9], 40, [3, 9]), ([3, 40], 40, [3, ""]), ([0, 9], 40, ["", 9]), ([3, 9], 0, [3, 9])],
)
def test_an_end_of_the_run_is_an_empty_field_of_the_zoom(script, zoom, last, fields):
    assert script("charts/chart_grid.js", "return page.fieldsOf(...given);", zoom, last) == fields


def test_a_curve_is_smoothed_over_a_share_of_its_values_and_a_gap_stays_one(script):
    values = [0.0, 1.0, None, 1.0]
    body = "return given[1].map((part) => page.smoothed(given[0], part));"
    light, strong = script("charts/curves.js", body, values, [1 / 10, 1])
    assert light == [0.0, 1.0, None, 1.0]  # three values are too few to be smoothed over a tenth of them
    assert strong == pytest.approx([0.0, 0.5, None, 0.75])  # the weight is 2 / 4
    assert script("charts/curves.js", body, [None, 3.0], [1]) == [[None, 3.0]]


def test_a_run_that_ended_is_smoothed_beside_a_longer_one_as_it_is_alone(script):
    body = """
      const [, short] = page.joined(given[0]);
      return [page.smoothed(short, 1), page.smoothed(given[0][0][1], 1)];
    """
    beside, alone = script("charts/curves.js", body, [[[0, 2], [1.0, 2.0]], [[0, 1, 2, 3, 4, 5], [0.0] * 6]])
    assert beside == [alone[0], None, alone[1], None, None, None]


def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm(script):
    assert script("charts/curves.js", "return page.positive(given[0]);", [[0, 1, 2, 3], [1.5, 0, None, -2]]) == [
        [0, 1, 2, 3],
        [1.5, None, None, None],
    ]


def test_the_nearest_line_is_the_one_that_was_clicked(script):
    body = "return [page.nearest(given[0], 1, 0.6), page.nearest(given[0], 0, 0.6), page.nearest([[null]], 0, 1)];"
    assert script("charts/curves.js", body, [[0.1, 0.9], [None, 0.5]]) == [1, 0, -1]


def test_curves_over_different_steps_are_joined_over_all_of_them(script):
    columns = [[[0, 2, 4], [1, None, 3]], None, [[1, 2], [7, 8]]]
    joined = [[0, 1, 2, 4], [1, None, None, 3], [None] * 4, [None, 7, 8, None]]
    assert script("charts/curves.js", "return page.joined(given[0]);", columns) == joined


CHOICE = """
  const made = [], told = [];
  globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000000" });
  globalThis.uPlot = class {
    constructor(options, data) {
      Object.assign(this, { options, data, cursor: { idx: null, top: 0 }, select: {} });
      made.push(this);
    }
    setData(data) { this.data = data; this.options.hooks.setCursor[0](this); }
    setCursor({ left }) { this.cursor.idx = left; this.options.hooks.setCursor[0](this); }
    setSelect(select) { this.select = select; }
    valToPos(value) { return this.data[0].indexOf(value); }
    posToVal(at) { return at; }
    destroy() { made.push("destroyed"); }
  };
  const view = new page.ChartView(), chart = new page.Chart(given[0], view, (...choice) => told.push(choice));
  view.listen((changed) => chart.follow(changed));
  const listeners = {};
  chart.canvas.addEventListener = (name, listener) => { listeners[name] = listener; };
  chart.canvas.clientWidth = 300;
  chart.set(given[1]);
  const press = (key) => {
    let used = false;
    chart.key({ key, preventDefault: () => { used = true; } });
    return used;
  };
"""
LINES = {"title": "Reward", "explanation": "", "smooth": True, "series": [{"label": "a"}, {"label": "b", "colour": 2}]}
DATA = [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0.5] * 9, [0.25] * 8 + [-1]]


def test_a_chart_zooms_by_brush_and_by_keys_and_leads_to_the_samples_of_a_step(script):
    body = f"""{CHOICE}
      const [plot] = made;
      plot.select = {{ left: 2, width: 4 }};
      plot.options.hooks.setSelect[0](plot);
      const brushed = [view.zoom, plot.options.scales.x.range(plot, 0, 8), plot.select.width];
      const used = [press("ArrowRight"), press("Enter"), press("2"), press("3"), press("Tab"), press("0")];
      return [brushed, used, told, view.zoom, plot.options.scales.x.range(plot, 0, 8), chart.value.textContent];
    """
    brushed, used, told, zoom, shown, value = script("charts/chart.js charts/chart_view.js", body, LINES, DATA)
    assert brushed == [[2, 6], [2, 6], 0]
    assert used == [True, True, True, False, False, True]
    assert told == [[2, 0], [2, 1]]
    assert (zoom, shown, value) == (None, [0, 8], "0.5 / 0.25 · step 2")


def test_a_chart_that_is_zoomed_says_the_newest_value_that_it_shows(script):
    body = f"{CHOICE} return [[0, 6], [5, 8], [9, 12]].map((zoom) => {{ view.change({{ zoom }}); return chart.value.textContent; }});"
    assert script("charts/chart.js charts/chart_view.js", body, LINES, DATA) == ["0.5 / 0.25", "0.5 / -1", "\u2013 / \u2013"]


def test_a_logarithmic_view_draws_a_chart_anew_without_what_is_not_positive(script):
    body = f"""{CHOICE}
      view.change({{ scale: "log", smoothing: "none" }});
      const plot = made.at(-1);
      return [made[1], plot.options.scales.y.distr, plot.data[2].at(-1), plot.data.length, made[0].data.length, chart.value.textContent];
    """
    assert script("charts/chart.js charts/chart_view.js", body, LINES, DATA) == ["destroyed", 3, None, 3, 5, "0.5 / -1"]


def test_a_chart_by_version_leads_to_no_samples(script):
    body = f"{CHOICE} press('Home'); return [press('Enter'), told];"
    assert script("charts/chart.js charts/chart_view.js", body, LINES | {"by": "version"}, DATA) == [True, []]


GRADER = {"from_group": 0, "scorer": {"grader": {"type": "math"}, "service": None}}
SERVICE = {"from_group": 9, "scorer": {"grader": None, "service": "https://scorer.example.org"}}
UNDECIDED = {"from_group": None, "scorer": {"grader": {"type": "regex"}, "service": None}}
MARKS = """
  const history = new page.RunHistory();
  given[2].forEach((event, at) => history.add({ id: at + 1, created_at: `2026-01-02T00:00:0${at}Z`, level: "info", ...event }));
  return page.scorerMarks(given[0], given[1], history);
"""


@pytest.mark.parametrize(
    ("schedule", "marks"),
    [
        ({"mode": "fixed_lag", "dynamic_sampling": 1}, [{"step": 2, "text": "Step 2: https://scorer.example.org judges from group 9 on"}]),
        ({"mode": "free", "dynamic_sampling": 1}, [{"step": 5, "text": "About step 5: https://scorer.example.org judges from group 9 on"}]),
    ],
)
def test_a_scorer_that_took_over_is_marked_at_its_step(script, schedule, marks):
    spec = {"schedule": schedule | {"groups_per_step": 4}}
    events = [
        {"type": "metrics", "data": {"step": 4}},
        {"type": "scorer", "data": {"from_group": 9, "scorer": "https://scorer.example.org"}},
        {"type": "metrics", "data": {"step": 5}},
        {"type": "metrics", "data": {"step": 6}},
    ]
    modules = "charts/marks.js history/run_history.js"
    assert script(modules, MARKS, spec, [GRADER, SERVICE, UNDECIDED], events) == marks


def test_a_change_whose_step_nothing_tells_has_no_mark(script):
    spec = {"schedule": {"mode": "free", "dynamic_sampling": 1, "groups_per_step": 4}}
    assert script("charts/marks.js history/run_history.js", MARKS, spec, [GRADER, SERVICE], []) == []


def test_marks_are_drawn_and_listed(script):
    body = """
      const marked = [], marks = new page.Marks([{ mark: (steps) => marked.push(steps) }]);
      marks.set([{ step: 2, text: "Step 2: b" }]);
      marks.set([{ step: 2, text: "Step 2: b" }]);
      return [marked, marks.element.textContent];
    """
    assert script("charts/marks.js", body) == [[[2]], "Step 2: b"]


def test_a_change_of_the_scorer_stays_marked_however_many_events_follow(script):
    spec = {"schedule": {"mode": "free", "dynamic_sampling": 1}}
    events = [{"type": "scorer", "data": {"from_group": 9}}, {"type": "metrics", "data": {"step": 5}}]
    later = [{"type": "checkpoint", "data": {}}] * 500
    found = script("charts/marks.js history/run_history.js", MARKS, spec, [GRADER, SERVICE], [*events, *later])
    assert [mark["step"] for mark in found] == [5]


def test_scorers_are_asked_for_again_until_the_gateway_tells_them(script):
    body = """
      const pauses = [], asked = [];
      globalThis.document.addEventListener = globalThis.document.removeEventListener = () => {};
      globalThis.setTimeout = (wake, pause) => { pauses.push(pause); setImmediate(wake); };
      globalThis.fetch = async (path) => {
        asked.push(path);
        const isRefused = asked.length < 3, headers = new Headers({ "Retry-After": "7" });
        return { ok: !isRefused, status: 503, headers, json: async () => (isRefused ? {} : { scorers: given[1] }) };
      };
      const turns = new page.ScorerTurns({ id: "run-1", spec: given[0] }, new AbortController().signal);
      const found = [await turns.read({ scorers: [] }), await turns.read({ scorers: [] })];
      return [found, asked, pauses.every((pause) => pause >= 7000 && pause <= 8750), pauses.length];
    """
    found, asked, were_kept, pauses = script("charts/scorer_turns.js", body, {"kind": "rl", "algorithm": {}}, [GRADER])
    assert found == [[GRADER], [GRADER]]
    assert (asked, were_kept, pauses) == (["/v1/runs/run-1/reward"] * 3, True, 2)
