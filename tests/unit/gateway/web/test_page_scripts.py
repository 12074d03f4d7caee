"""What the page shows of each kind of run."""

import pytest

SAMPLE = {
    "id": "5.1",
    "index": 5,
    "row_index": 9,
    "step": 1,
    "text": "moon",
    "reward": None,
    "reward_status": "none",
    "components": {},
    "verdict": "train",
    "advantage": -1.0,
    "finish_reason": "stop",
    "versions": [{"start": 0, "end": 2, "version": 0, "trainable": True}],
}
SHARED = ["Gradient norm", "Learning rate", "Response length", "Speed"]
LABELS = ["Loss", "Margin", "Desirable / undesirable", "KL", *SHARED]
PAIRS = ["Loss", "Accuracy", "Margin", "Chosen / rejected", *SHARED]


def run_of(kind, lora=None, model=None, **progress):
    return {
        "id": "run-1",
        "name": "pairs",
        "kind": kind,
        "tags": [],
        "note": "",
        "state": "running",
        "steps": 9,
        "created_at": "2026-01-02T23:04:05Z",
        "waiting_for": "",
        "reason": "",
        "progress": {"step": 3, "version": 2, "checkpoint_step": 0, "reward": 0.25, "accuracy": 0.5, "staleness": 1.0, "loss": None}
        | {"pair_accuracy": None, "held_out_loss": None, "shares": {}}
        | progress,
        "spec": {
            "kind": kind,
            "schedule": {"groups_per_step": 4, "max_staleness": 0, "mode": "fixed_lag", "dynamic_sampling": 1},
            "rollout": {"group_size": 8},
            "reward": {"model": model, "service": None},
            "algorithm": {"name": "grpo", "kl": 0.0, "truncated": "keep"},
            "trainer": {"lora": lora, "critic": None},
            "checkpoint": {"every": 50},
            "evaluation": {"metric": "mean"},
        },
    }


@pytest.mark.parametrize(
    ("kind", "titles"),
    [("sft", ["Loss", "Entropy", *SHARED]), ("kto", LABELS), *((kind, PAIRS) for kind in ("dpo", "ipo", "simpo", "orpo", "reward_model"))],
)
def test_the_charts_of_given_responses_are_those_of_their_metrics(script, kind, titles):
    body = "return page.chartsOf(given[0]).map(({ options }) => options.title);"
    assert script("charts/run_charts.js", body, run_of(kind)["spec"]) == titles


@pytest.mark.parametrize(("kind", "accuracy"), [("sft", False), ("kto", False), ("dpo", True), ("reward_model", True)])
def test_held_out_rows_of_given_responses_have_charts_by_version(script, kind, accuracy):
    body = """
      const history = new page.RunHistory();
      given[1].forEach((data, at) => history.add({ id: at + 1, type: "evaluation", created_at: "2026-01-02T23:04:05Z", data }));
      return Object.fromEntries(page.chartsOf(given[0]).map(({ options, data }) => [options.title, data(history.drawn)]));
    """
    results = [{"version": 0, "loss": 0.75, "accuracy": 0.5}, {"version": 5, "loss": None}, {"version": 9, "loss": 0.25, "accuracy": 1.0}]
    spec = run_of(kind)["spec"] | {"data": {"eval": "sha256:e"}}
    shown = script("charts/run_charts.js history/run_history.js", body, spec, results)
    assert shown["Held-out loss"] == [[0, 9], [0.75, 0.25]]
    assert shown.get("Held-out accuracy") == ([[0, 9], [0.5, 1.0]] if accuracy else None)
    assert "Held-out" not in shown


def test_a_run_with_rewards_has_the_charts_of_sampling_and_with_a_critic_its_own(script):
    body = "return page.chartsOf(given[0]).map(({ options }) => options.title);"
    spec = run_of("rl")["spec"]
    titles = script("charts/run_charts.js", body, spec)
    assert {"Reward", "Held-out", "KL", "Staleness", "Clipped"} < set(titles)
    assert not {"Loss", "Accuracy"} & set(titles)
    assert script("charts/run_charts.js", body, spec | {"trainer": {"critic": {}}}) == [*titles, "Explained variance", "Value loss"]


def test_axes_that_few_runs_use_have_charts_of_their_columns_where_they_are_used(script):
    body = """
      const history = new page.RunHistory();
      history.add({ id: 1, type: "metrics", created_at: "2026-01-02T23:04:05Z", data: given[1] });
      return page.chartsOf(given[0]).map(({ options, data }) => [options.title, ...data(history.drawn).slice(1)]);
    """
    spec, axes = run_of("rl")["spec"], {"second_moment": 0.04, "covariance_clip": {}, "centering": 8, "drift": 1e-3, "nll": 0.1}
    columns = {
        "outliers": 0.1,
        "covariance_clipped": 0.15,
        "total_variation": 0.2,
        "drift": 0.3,
        "nll": 0.4,
        "step_kl": 0.5,
        "kl_coefficient": 0.6,
    }
    data = {"step": 3, "entropy_coefficient": 0.7} | columns
    usual = script("charts/run_charts.js history/run_history.js", body, spec, data)
    algorithm = spec["algorithm"] | axes | {"kl_control": {"target": 6.0}, "entropy_control": {}}
    used = spec | {"algorithm": algorithm, "trainer": {"critic": None, "inner": {"stop_kl": 0.1}}}
    shown = script("charts/run_charts.js history/run_history.js", body, used, data)
    titles = ("Outliers", "High covariance", "Distance of the policies", "Drift", "Best samples", "KL of the step")
    assert shown[: len(usual)] == usual
    assert shown[len(usual) :] == [
        *([title, [value]] for title, value in zip(titles, columns.values(), strict=False)),
        ["Coefficients", [0.6], [0.7]],
    ]


def test_a_run_that_a_teacher_judges_has_the_chart_of_its_divergence_in_place_of_rewards(script):
    body = "return page.chartsOf(given[0]).map(({ options }) => options.title);"
    spec = run_of("rl")["spec"]
    beside = script("charts/run_charts.js", body, spec | {"teacher": {"coefficient": 0.5}})
    assert beside[:4] == ["Reward", "Range of rewards", "KL to the teacher", "Held-out"]
    distilled = spec | {"teacher": {"coefficient": None}, "algorithm": spec["algorithm"] | {"advantage": "distill"}}
    assert script("charts/run_charts.js", body, distilled) == beside[2:]


@pytest.mark.parametrize(("kind", "chosen"), [("dpo", "chosen_logprob"), ("reward_model", "chosen_score")])
def test_each_chart_of_pairs_shows_its_columns_of_the_history(script, kind, chosen):
    body = """
      const history = new page.RunHistory();
      history.add({ id: 1, type: "metrics", created_at: "2026-01-02T23:04:05Z", data: given[1] });
      return Object.fromEntries(page.chartsOf(given[0]).map(({ options, data }) => [options.title, data(history.drawn)]));
    """
    rejected = chosen.replace("chosen", "rejected")
    data = {
        "step": 7,
        "loss": 0.5,
        "accuracy": 0.75,
        "margin": 0.25,
        chosen: -1.0,
        rejected: -2.0,
        "grad_norm": 3.0,
        "learning_rate": 0.125,
    }
    shown = script("charts/run_charts.js history/run_history.js", body, run_of(kind)["spec"], data | {"response_length": 6.5})
    assert shown == {
        "Loss": [[7], [0.5]],
        "Accuracy": [[7], [0.75]],
        "Margin": [[7], [0.25]],
        "Chosen / rejected": [[7], [-1.0], [-2.0]],
        "Gradient norm": [[7], [3.0]],
        "Learning rate": [[7], [0.125]],
        "Response length": [[7], [6.5]],
        "Speed": [[7], [None]],
    }


DIAGRAM = """
  const history = { rates: () => ({ steps: 2, tokens: 100 }) };
  const workers = [{ role: "rollout", version: -1, claims: [5], busy: 0 }, { role: "trainer", version: 3 }];
  return page.diagramState(given[0], history, workers, { reference: 0.5, wait: 0.25 });
"""


@pytest.mark.parametrize(
    ("kind", "lora", "reference"),
    [("sft", None, False), ("dpo", None, True), ("ipo", {}, False), ("orpo", None, False), ("kto", None, True)],
)
def test_the_diagram_of_given_responses_has_no_scorer_and_a_reference_only_if_the_loss_compares(script, kind, lora, reference):
    state = script("run/diagram_state.js", DIAGRAM, run_of(kind, lora))
    assert (state["usesReward"], state["usesReference"]) == (False, reference)
    assert state["stats"]["reward"] == "not used"
    assert state["stats"]["reference"] == ("busy 50 %" if reference else "not used")
    assert (state["flows"]["score"]["long"], state["flows"]["load"]["long"]) == ("", "")
    assert state["flows"]["sampled"]["long"] == ("8 responses/s" if kind == "sft" else "16 responses/s")
    assert state["flows"]["logprobs"]["long"] == ("16 log-probabilities/s" if reference else "")
    assert state["flows"]["admitted"]["long"] == "admitted once"


def test_the_diagram_of_a_run_with_rewards_has_its_scorer(script):
    state = script("run/diagram_state.js", DIAGRAM, run_of("rl"))
    assert (state["usesReward"], state["usesReference"]) == (True, False)
    assert state["flows"]["score"]["long"] == "64 scores/s"
    state = script("run/diagram_state.js", DIAGRAM, run_of("rl", model={"path": "m"}))
    assert (state["usesReward"], state["usesReference"], state["flows"]["logprobs"]["long"]) == (False, True, "64 scores/s")


def distilled(**changes):
    """A run that a teacher judges."""
    run = run_of("rl", **changes)
    spec = run["spec"]
    taught = {"teacher": {"coefficient": None}, "data": {"eval": None}, "algorithm": spec["algorithm"] | {"advantage": "distill"}}
    return run | {"spec": spec | taught}


def test_the_diagram_of_a_run_that_a_teacher_judges_has_no_scorer(script):
    state = script("run/diagram_state.js", DIAGRAM, distilled())
    assert (state["usesReward"], state["usesReference"], state["flows"]["score"]["long"]) == (False, True, "")
    assert state["flows"]["logprobs"]["long"] == "64 log-probabilities/s"
    assert state["flows"]["admitted"]["long"] == "admitted once"


HEADER = """
  const header = new page.RunHeader({ can: () => true }, given[0], () => {});
  header.set(given[0], { rates: () => null });
  return header.element.textContent;
"""


@pytest.mark.parametrize(
    ("kind", "progress", "figures"),
    [
        ("rl", {}, "Reward 0.250 Held-out 0.500 Staleness 1.0 Speed"),
        ("sft", {"loss": 0.6931}, "Step 3 of 9 Loss 0.693 Speed"),
        ("dpo", {"loss": 0.6931, "pair_accuracy": 0.75}, "Step 3 of 9 Loss 0.693 Accuracy 0.750 Speed"),
        ("kto", {"loss": 0.5, "held_out_loss": 0.25}, "Step 3 of 9 Loss 0.500 Held-out loss 0.250 Speed"),
    ],
)
def test_the_header_shows_the_kind_and_its_figures(script, kind, progress, figures):
    run = run_of(kind, **progress)
    text = script(
        "run/run_header.js", HEADER, run | {"spec": run["spec"] | {"data": {"eval": "e" if "Held-out loss" in figures else None}}}
    )
    assert figures in text
    assert (f" · {kind} · grpo · " if kind == "rl" else f" · {kind} · ") in text
    assert ("grpo" in text) is (kind == "rl")


def test_the_header_of_a_run_with_a_teacher_shows_how_far_it_is_from_it(script):
    text = script("run/run_header.js", HEADER, distilled(reward=None, teacher_kl=0.125))
    assert "Step 3 of 9 KL to teacher 0.125 Held-out 0.500 Staleness 1.0 Speed" in text


def test_the_header_leads_to_the_plan_of_the_runs_spec(script):
    body = """
      const header = new page.RunHeader({ can: () => true }, given[0], () => {});
      const links = (part) => [part.attributes?.href, ...(part.parts ?? []).flatMap(links)].filter(Boolean);
      return links(header.element);
    """
    assert "#/plan?run=run-1" in script("run/run_header.js", body, run_of("rl"))


CARD = "return page.sampleCard(given[0], given[1], { colour: '', texts: null, range: [0, 1] }).textContent;"


@pytest.mark.parametrize(
    ("kind", "label", "shown"), [("dpo", "chosen", "moon chosen"), ("kto", "mismatched", "moon mismatched"), ("sft", "", "moon")]
)
def test_a_given_response_shows_its_label_in_place_of_a_reward(script, kind, label, shown):
    assert script("samples/sample_card.js", CARD, run_of(kind), SAMPLE | {"label": label}) == shown


def test_a_sampled_response_shows_its_reward_and_its_advantage(script):
    judged = SAMPLE | {"reward": 0.5, "reward_status": "ok"}
    assert script("samples/sample_card.js", CARD, run_of("rl"), judged) == "moon 0.5 advantage\xa0\u22121.00"
    assert script("samples/sample_card.js", CARD, run_of("rl"), SAMPLE) == "moon not scored masked"
    baseline = judged | {"advantage": None, "label": "greedy"}
    assert script("samples/sample_card.js", CARD, run_of("rl"), baseline) == "moon 0.5 greedy"


def test_what_a_teacher_judges_has_no_reward_and_is_not_masked(script):
    sample = SAMPLE | {"advantage": None}
    assert script("samples/sample_card.js", CARD, distilled(), sample) == "moon"
    show, _, text = script("samples/comparison_controls.js", CONTROLS, distilled())
    assert (show, "lowest" in text) == ("prompt", False)


CONTROLS = """
  const selection = page.selectionOf(new URLSearchParams("show=low&colour=advantage"), given[0]);
  return [selection.show, selection.colour, page.controls(given[0], selection, () => {}).textContent];
"""


def test_given_responses_are_neither_ordered_by_reward_nor_coloured(script):
    show, colour, text = script("samples/comparison_controls.js", CONTROLS, run_of("dpo"))
    assert (show, colour, "Colour" in text, "lowest" in text) == ("prompt", "", False, False)
    show, colour, text = script("samples/comparison_controls.js", CONTROLS, run_of("rl"))
    assert (show, colour, "Colour" in text, "lowest" in text) == ("low", "advantage", True, True)


def test_the_time_of_given_responses_names_no_rollouts_that_are_busy(script):
    body = """
      const history = { shares: () => ({ wait: 0.5, train: 0.5, publish: 0 }) };
      const shares = page.timeShares(given[0], history, [{ role: "rollout", busy: 0 }]);
      const breakdown = new page.TimeBreakdown();
      for (const part of Object.values(breakdown.parts)) part.bar.style = {};
      breakdown.set(shares, false);
      return [shares, breakdown.element.textContent];
    """
    run = run_of("sft", shares={"generate": 0.0, "score": 0.0, "reference": 0.1})
    shares, text = script("run/utilization.js run/time_breakdown.js", body, run)
    assert shares == {"reference": 0.1, "wait": 0.5, "train": 0.5, "publish": 0}
    assert "Rollout-bound The trainer waits 50 % of its time for samples. More" in text


def test_a_worker_that_reads_the_dataset_is_not_said_to_sample(script):
    body = """
      const table = new page.WorkerTable();
      const claims = { claims: [5], evaluation_claims: [] };
      const worker = { worker: "rollout-0", role: "rollout", version: -1, busy: 0, trouble: "", preparing: "", ...claims };
      return ["dataset", "torch"].map((engine) => {
        table.set([{ ...worker, engine }], 3, {});
        return table.body.textContent;
      });
    """
    given, sampled = script("run/workers.js", body)
    assert given.endswith("\u2013 \u2013 reading 1 groups")
    assert sampled.endswith("\u2013 0 % sampling 1 groups")


RANKED = {
    "id": "run-1",
    "progress": {"step": 9},
    "spec": {"kind": "rl", "algorithm": {}, "schedule": {"mode": "fixed_lag", "dynamic_sampling": 1}},
}


@pytest.mark.parametrize(
    ("address", "selected"),
    [
        ("show=search&text=no+answer&verdict=filtered", "show=search&text=no+answer&verdict=filtered"),
        ("show=search&verdict=unheard&text=" + "x" * 300, "show=search&text=" + "x" * 200 + "&verdict="),
        ("show=nothing&steps=1,2", "steps=1%2C2&at=0&show=prompt"),
        ("row=3&show=search", "row=3"),
        ("steps=4&at=2&show=low", "steps=4&at=2&show=low"),
    ],
)
def test_the_selection_of_samples_is_kept_in_the_address(script, address, selected):
    body = "return `${page.queryOf(page.selectionOf(new URLSearchParams(given[0]), given[1]))}`;"
    assert script("samples/comparison_controls.js", body, address, RANKED) == selected


def test_the_rest_of_a_row_stands_beside_a_sample_of_a_policy(script):
    run = {"kind": "rl", "data": {"prompt": "question"}}
    sample = SAMPLE | {"item": {"question": "1+1=", "answer": "2", "tags": ["a"]}}
    body = "return given[0].map(([spec, sample]) => page.answersOf({ spec }, sample));"
    cases = [(run, sample), (run, SAMPLE | {"item": None}), (run, SAMPLE), (run | {"kind": "sft"}, sample)]
    assert script("samples/sample_log.js", body, cases) == [[["answer", "2"], ["tags", '["a"]']], [], [], []]
    shown = script(
        "samples/row_fields.js", "return given[0].map((fields) => page.rowFields(fields).textContent ?? false);", [[["answer", "2"]], []]
    )
    assert shown == ["answer 2", False]


RANKING = """
  const asked = [];
  globalThis.fetch = async (path) => {
    const query = new URL(path, "http://page").searchParams;
    asked.push([query.get("step") ?? query.get("index"), query.getAll("include"), query.get("limit")]);
    const ofGroup = given[1].find((one) => `${one.index}` === query.get("index"));
    const data = query.has("step") ? given[1] : [{ ...ofGroup, item: { answer: query.get("index") } }];
    return { ok: true, json: async () => ({ data, has_more: true }) };
  };
  const times = { of: async () => 0 };
  const column = await page.readStep(given[0], times, { show: "low", colour: "advantage" }, 1, undefined);
  const text = page.columnElement(given[0], column, { colour: "advantage", texts: null, range: [0, 1], update: () => {} }).textContent;
  return [asked, column.samples.map((sample) => [sample.id, sample.item]), text];
"""


def test_a_ranking_reads_its_step_without_rows_and_then_the_row_of_each_group_that_it_shows(script):
    judged = {"prompt": "where", "reward_status": "ok"}
    samples = [SAMPLE | judged | {"id": f"{4 + n // 2}.{n % 2}", "index": 4 + n // 2, "reward": 1 - n / 8} for n in range(3)]
    run = run_of("rl")
    run["spec"]["data"] = {"prompt": "prompt"}
    asked, shown, text = script("samples/comparison_view.js", RANKING, run, samples)
    assert asked == [["1", [], "1000"], ["5", ["item"], "1"], ["4", ["item"], "1"]]
    assert shown == [["5.0", {"answer": "5"}], ["4.1", {"answer": "4"}], ["4.0", {"answer": "4"}]]
    assert text.endswith("Selected from the first 3 samples of this step.")


def test_a_turn_says_how_it_ended_and_where_it_is(script):
    turn = {"start": 3, "end": 7, "finish": "stop", "stop_text": "", "sequence": 0, "after_turn": None, "text": "", "calls": []}
    body = "return given.map(page.noteOf);"
    turns = [
        turn,
        turn | {"finish": "length"},
        turn | {"stop_text": '\n"Observation":'},
        turn | {"sequence": 2},
        turn | {"sequence": 1, "after_turn": 0},
    ]
    assert script("samples/conversation.js", body, *turns) == [
        "4 tokens",
        "4 tokens, cut off",
        '4 tokens, ended at "\\n\\"Observation\\":"',
        "4 tokens, sequence 3",
        "4 tokens, sequence 2, without the thinking up to turn 1",
    ]


VIEW = """
  globalThis.ResizeObserver = class { observe() {} disconnect() {} };
  globalThis.matchMedia = () => ({ addEventListener() {} });
  globalThis.setTimeout = (wake) => setImmediate(wake);
  Object.assign(document, { createElementNS: (_, tag) => document.createElement(tag), addEventListener() {}, removeEventListener() {} });
  const root = document.createElement("div"), controller = new AbortController(), opened = [];
  globalThis.EventSource = class {
    listeners = {};
    constructor(path) { opened.push(path); this.close = () => {}; setImmediate(() => given[1].forEach((event) => this.send(event))); }
    addEventListener(type, listener) { this.listeners[type] = listener; }
    send(event) { this.listeners[event.type]({ data: JSON.stringify(event) }); }
  };
  globalThis.fetch = async (path) => {
    const [status, body] = {
      "/v1/runs/run-1": [200, given[0]], "/v1/runs/run-1/reward": [200, { scorers: [] }], "/v1/workers": [200, { data: [] }],
      "/v1/runs/run-1/history": [500, { detail: "the gateway failed; its log says why" }], "/v1/runs/run-1/lineage": [404, {}],
    }[path.split("?")[0]];
    return { ok: status === 200, status, headers: new Headers(), json: async () => body };
  };
  await page.showRun({ root, signal: controller.signal, query: new URLSearchParams(), can: () => true, showError: () => {} }, "run-1");
  for (let turn = 0; turn < 40; turn += 1) await new Promise((wake) => setImmediate(wake));
  controller.abort();
  return [opened, root.textContent];
"""


def test_a_run_whose_history_cannot_be_read_says_so_and_shows_the_events_that_come(script):
    event = {
        "id": 7,
        "type": "metrics",
        "level": "info",
        "message": "",
        "created_at": "2026-01-02T23:04:05Z",
        "data": {"step": 3, "reward": 0.625},
    }
    alarm = event | {"id": 8, "type": "alarm", "message": "the reward fell"}
    opened, text = script("run/run_view.js", VIEW, run_of("rl") | {"state": "succeeded"}, [event, alarm])
    assert opened == ["/v1/runs/run-1/events?after=0"]
    assert "The history of pairs cannot be read" in text
    assert "the gateway failed; its log says why" in text
    assert "Reward 0.625" in text
    assert "the reward fell" in text
