"""Runs beside each other: their curves in the same charts, and what differs in their specs."""

import pytest
from page_histories import history_of

SPEC = {
    "name": "first",
    "kind": "rl",
    "schedule": {"groups_per_step": 4, "mode": "fixed_lag", "dynamic_sampling": 1},
    "rollout": {"group_size": 8},
    "data": {"train": "sha256:t", "eval": None, "mixture": [], "columns": {}},
    "algorithm": {"name": "grpo", "kl": 0.0, "advantage": "group"},
    "trainer": {"critic": None, "learning_rate": 1e-05},
    "evaluation": {"metric": "mean"},
}


def with_(name, **sections):
    return SPEC | {"name": name} | {section: SPEC.get(section, {}) | fields for section, fields in sections.items()}


def test_specs_are_compared_field_by_field(script):
    other = with_(
        "second", trainer={"learning_rate": 3e-5, "critic": {"coefficient": 0.5}}, data={"mixture": [{"weight": 1}, {"weight": 2}]}
    )
    rows = script("compare/spec_difference.js", "return page.differences(given[0]);", [SPEC, other, SPEC])
    assert {row["field"]: row["values"] for row in rows} == {
        "trainer.learning_rate": ["0.00001", "0.00003", "0.00001"],
        "trainer.critic.coefficient": [None, "0.5", None],
        "data.mixture.0.weight": [None, "1", None],
        "data.mixture.1.weight": [None, "2", None],
    }


def test_a_missing_table_and_an_empty_one_and_a_null_are_no_difference(script):
    specs = [{"name": "a", "x": None, "y": {}, "z": []}, {"name": "b"}]
    assert script("compare/spec_difference.js", "return page.differences(given[0]);", specs) == []
    fields = script("compare/spec_difference.js", "return [...page.fieldsOf(given[0])];", {"s": "text", "l": [1, "a"], "b": False})
    assert fields == [["s", "text"], ["l", '[1,"a"]'], ["b", "false"]]


OVERLAY = """
  const histories = given[1].map((metrics) => {
    const history = new page.RunHistory();
    metrics.forEach((data, at) => history.add({ id: at + 1, type: "metrics", created_at: "2026-01-02T23:04:05Z", data }));
    return { shown: history, whole: history };
  });
  const runs = given[0].map((spec) => ({ label: spec.name, spec }));
  return Object.fromEntries(page.overlaysOf(runs).map(({ options, data }) => [options.title, [options.series, data(histories)]]));
"""


def test_each_line_of_a_chart_has_a_chart_with_a_line_for_each_run(script):
    critic = with_("second", trainer={"critic": {}})
    metrics = [
        [{"step": 0, "reward": 0.5, "reward_std": 0.1, "clip_low": 0.01}, {"step": 2, "reward": 0.75, "clip_low": 0.02}],
        [{"step": 1, "reward": 0.25, "explained_variance": 0.5}],
    ]
    charts = script("compare/overlay.js history/run_history.js", OVERLAY, [SPEC, critic], metrics)
    series, data = charts["Reward"]
    assert series == [{"label": "first", "colour": 1}, {"label": "second", "colour": 2}]
    assert data == [[0, 1, 2], [0.5, None, 0.75], [None, 0.25, None]]
    assert charts["Clipped: low"][1] == [[0, 1, 2], [0.01, None, 0.02], [None] * 3]
    assert charts["Explained variance"][1] == [[1], [None], [0.5]]
    assert {"Clipped: high", "Staleness: mean", "Held-out"} < charts.keys()
    assert "Clipped" not in charts


def test_runs_are_smoothed_by_the_steps_of_their_own_points(script):
    body = """
      const histories = given[1].map((found) => page.RunHistory.of(found)).map((history) => ({ shown: history, whole: history }));
      const runs = given[0].map((spec) => ({ label: spec.name, spec }));
      const { weightsOf } = page.overlaysOf(runs).find(({ options }) => options.title === "Reward").look(histories);
      return [weightsOf(0), weightsOf(1)];
    """
    found = [history_of([0, (1, 8, 8)], reward=[0.5, [0.5] * 4]), history_of([0, 2], reward=[0.5] * 2)]
    weights = [[1, 1, None, 7], [1, None, 1, None]]
    assert script("compare/overlay.js history/run_history.js", body, [SPEC, with_("second")], found) == weights


@pytest.mark.parametrize(
    ("address", "ids"),
    [
        ("runs=run-1,run-2", ["run-1", "run-2"]),
        ("runs=run-1,run-1,../x,run-3", ["run-1", "run-3"]),
        ("runs=" + ",".join(f"run-{n}" for n in range(9)), [f"run-{n}" for n in range(6)]),
        ("", []),
    ],
)
def test_the_runs_are_in_the_address(script, address, ids):
    body = """
      const ids = page.idsOf(new URLSearchParams(given[0]));
      return [ids, page.idsOf(new URLSearchParams(page.comparisonOf(ids).split("?")[1]))];
    """
    assert script("compare/address.js", body, address) == [ids, ids]


VIEW = """
  globalThis.ResizeObserver = class { observe() {} disconnect() {} };
  globalThis.matchMedia = () => ({ addEventListener() {} });
  globalThis.history = { replaceState: (...parts) => { globalThis.shown = parts[2]; } };
  globalThis.location = { hash: "" };
  const asked = [];
  globalThis.fetch = async (path) => {
    const [address] = path.split("?");
    asked.push(address);
    const [, , , id, events] = address.split("/");
    if (address === "/v1/runs") return { ok: true, json: async () => ({ data: given[0] }) };
    const run = given[0].find((one) => one.id === id);
    if (!run) return { ok: false, status: 404, headers: new Headers(), json: async () => ({ detail: `there is no run ${id}` }) };
    return { ok: true, json: async () => (events ? given[2] : run) };
  };
  const root = document.createElement("div"), controller = new AbortController();
  await page.showRunComparison({ root, signal: controller.signal, query: new URLSearchParams(given[1]), showError: () => {} });
  controller.abort();
  return [root.textContent, asked, root];
"""


def run_of(number, **spec):
    progress = {"step": 4, "reward": 0.125 * number, "accuracy": None, "held_out_loss": None, "loss": None, "teacher_kl": None}
    return {"id": f"run-{number}", "name": f"name-{number}", "state": "succeeded", "steps": 9, "progress": progress, "spec": SPEC | spec}


def test_a_comparison_shows_figures_differences_and_what_could_not_be_read(script):
    runs = [run_of(1), run_of(2, seed=7), run_of(3)]
    text, asked, _ = script("compare/compare_view.js", VIEW, runs, "runs=run-1,run-2,run-9", history_of([0], reward=[0.5]))
    assert "there is no run run-9" in text
    assert "1 name-1 run-1 Take out Succeeded 4 of 9 0.125 \u2013" in text
    assert "Differences of the specs Field name-1 name-2 seed \u2013 7" in text
    assert "name-3 (run-3) Add to the comparison" in text
    assert "Reward 0.500 / 0.500" in text
    assert {"/v1/runs/run-1/history", "/v1/runs/run-2/history"} < set(asked)


def test_a_comparison_of_one_run_asks_for_another(script):
    text, _, _ = script("compare/compare_view.js", VIEW, [run_of(1), run_of(2)], "runs=run-1", history_of([]))
    assert text.startswith("Comparison of runs All runs Choose two runs or more.")
    text, asked, _ = script("compare/compare_view.js", VIEW, [run_of(1)], "")
    assert "name-1 (run-1) Add to the comparison" in text
    assert asked == ["/v1/runs"]


FOLLOW = """
  globalThis.ResizeObserver = class { observe() {} disconnect() {} };
  globalThis.matchMedia = () => ({ addEventListener() {} });
  document.addEventListener = document.removeEventListener = () => {};
  globalThis.setTimeout = (wake) => setImmediate(wake);
  const root = document.createElement("div"), asked = [], seen = [], answers = given[1];
  globalThis.fetch = async (path) => {
    const [address, query] = path.split("?");
    if (address === "/v1/runs") return { ok: true, json: async () => ({ data: [] }) };
    const what = address.split("/")[4];
    if (what) asked.push(`${what} ${new URLSearchParams(query).get("after") ?? ""}`.trim());
    const [status, body] = what ? answers.read.shift() : [200, answers.runs.length > 1 ? answers.runs.shift() : answers.runs[0]];
    seen.push(root.textContent);
    return { ok: status === 200, status, headers: new Headers(), json: async () => body };
  };
  const query = new URLSearchParams("runs=run-1"), { signal } = new AbortController();
  await page.showRunComparison({ root, signal, query, showError: () => {} });
  return [asked, given[0].map((text) => [seen.some((shown) => shown.includes(text)), root.textContent.includes(text)]), root.textContent];
"""
REFUSED = [429, {"detail": "too many requests"}]


def page_of(step, *, more=False):
    event = {"id": step, "type": "metrics", "created_at": "2026-01-02T23:04:05Z", "data": {"step": step, "reward": step / 8}}
    return [200, {"data": [event], "has_more": more}]


def test_what_was_refused_is_read_again_and_the_problem_goes(script):
    answers = {"runs": [run_of(1)], "read": [REFUSED, [200, history_of([1], reward=[0.125])]]}
    asked, [problem], text = script("compare/compare_view.js", FOLLOW, ["too many requests"], answers)
    assert asked == ["history", "history"]
    assert problem == [True, False]
    assert "Reward 0.125" in text


def test_of_a_run_that_still_trains_only_later_events_are_read_and_once_more_when_it_is_over(script):
    running = run_of(1) | {"state": "running"}
    answers = {"runs": [running, running, run_of(1)], "read": [[200, history_of([1], reward=[0.125])], page_of(2)]}
    asked, _, text = script("compare/compare_view.js", FOLLOW, [], answers)
    assert asked == ["history", "events 1"]
    assert "Reward 0.250" in text


def test_a_run_of_which_many_events_came_since_is_read_anew_and_to_its_end(script):
    running = run_of(1) | {"state": "running"}
    whole = [[200, history_of([newest], reward=[newest / 8])] for newest in (1, 9)]
    answers = {"runs": [running, running, run_of(1)], "read": [whole[0], page_of(2, more=True), whole[1], page_of(10)]}
    asked, _, text = script("compare/compare_view.js", FOLLOW, [], answers)
    assert asked == ["history", "events 1", "history", "events 9"]
    assert "Reward 1.250" in text


def test_while_the_gateway_still_reads_a_long_run_the_page_says_up_to_which_step(script):
    answers = {"runs": [run_of(1)], "read": [[200, history_of([20], reward=[2.5], is_whole=False)], [200, history_of([22], reward=[2.75])]]}
    cut = "The curves of name-1 end at step 20, because it has many events: the rest is being read."
    asked, [said], text = script("compare/compare_view.js", FOLLOW, [cut], answers)
    assert asked == ["history", "history"]
    assert said == [True, False]
    assert "Reward 2.750" in text


LIST = """
  const picks = new page.Picks();
  const boxes = given[0].map((run) => picks.box(run));
  const link = () => { const [part] = picks.element.parts; return [part.textContent, part.attributes.href ?? ""]; };
  const shown = [link()];
  boxes.forEach((box, at) => { picks.pick(given[0][at].id, true); shown.push(link()); });
  picks.pick(given[0][0].id, false);
  return [...shown, link()];
"""


def test_picked_runs_of_the_list_lead_to_their_comparison(script):
    shown = script("run/picks.js", LIST, [run_of(1), run_of(2), run_of(3)])
    hint = ["Pick two runs or more to compare them.", ""]
    assert shown[:3] == [hint, hint, ["Compare 2 runs", "#/compare?runs=run-1%2Crun-2"]]
    assert shown[3:] == [["Compare 3 runs", "#/compare?runs=run-1%2Crun-2%2Crun-3"], ["Compare 2 runs", "#/compare?runs=run-2%2Crun-3"]]
