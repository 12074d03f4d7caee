"""A real run's traces as a collector gets them: whole, without orphans, with times that add up, and all of them declared."""

import json
import threading
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from guessing_agent import GuessingAgent, agent_spec, make_game

from gradbus.telemetry import evaluation_trace, group_trace, start_trace, step_trace
from gradbus.telemetry.registry import SPANS

STEPS, GROUPS, SAMPLES = 4, 4, 4
GRADE = "def grade(sample, item):\n    return len(set(sample['output_text'])) / 16\n"
ALIKE = {"type": "text_similarity", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
GRADER = {
    "type": "multi",
    "graders": {"alike": ALIKE, "letters": {"type": "python", "source": GRADE}},
    "calculate_output": "alike + letters",
}
EVALUATED = (0, 2, 4)
CALLED = {"score_call": "gradbus-reward", "reference_call": "gradbus-reference"}
CLOCK = 1_000_000  # the log tells times to the millisecond


def trace_id(traceparent):
    return traceparent.split("-")[1]


class Tree:
    """One trace."""

    def __init__(self, spans):
        self.spans = spans
        self.below = defaultdict(list)
        for span in spans:
            self.below[span.parent].append(span)

    @property
    def root(self):
        (root,) = self.below[""]
        return root

    def named(self, name, below=None):
        found = self.spans if below is None else self.below[below.id]
        return [span for span in found if span.name == name]

    def one(self, name, below=None):
        (span,) = self.named(name, below)
        return span


@pytest.fixture(scope="module")
def run(traced, spec, rows):
    """Two workers, a grader of two parts, a reference, held-out rows: every kind of work there is."""
    held_out = rows([{"prompt": "sun and", "answer": "moon"}])
    sections = {
        "reward": {"grader": GRADER},
        "algorithm": {"kl": 0.05},
        "data": {"eval": held_out},
        "evaluation": {"every": 2},
        "schedule": {"groups_per_step": GROUPS, "steps": STEPS, "max_staleness": 1},
    }
    return traced.train(spec(**sections))


@pytest.fixture(scope="module")
def trees(run, collector):
    """The run's traces by id, once the last of them is here."""

    def whole():
        spans = collector.of_run(run["id"])
        names = Counter(span.name for span in spans if not span.error)
        wanted = dict.fromkeys(("group", "generate", "score"), STEPS * GROUPS + len(EVALUATED))
        wanted |= {"deliver": STEPS * GROUPS + len(EVALUATED), "wait_in_log": STEPS * GROUPS}
        wanted |= {"train_step": STEPS, "publish_version": STEPS + 1, "checkpoint": 2}
        trained = sum(span.attributes.get("gradbus.verdict") == "train" for span in spans if span.name == "group")
        wanted |= dict.fromkeys(("reference", "train"), trained)
        loads, attested = names["load_weights"], names["gradbus.v1.WeightStoreService/Attest"]
        return all(names[name] >= count for name, count in wanted.items()) and attested >= 2 * loads and answered(spans)

    collector.until(whole)
    collector.gives_time(lambda: not orphans(collector.of_run(run["id"])))
    found = defaultdict(list)
    for span in collector.of_run(run["id"]):
        found[span.trace].append(span)
    return {trace: Tree(spans) for trace, spans in found.items()}


def orphans(spans):
    """Spans whose parent is not there."""
    known = {span.id for span in spans}
    return [span.name for span in spans if span.parent and span.parent not in known]


def answered(spans):
    """Whether each call that did not fail has been recorded by both sides."""
    calls = {span.id: span for span in spans if span.name.startswith("gradbus.v1.") and not span.error}
    servers = {span.id for span in calls.values() if span.parent in calls}
    return calls.keys() - servers == {span.parent for span in calls.values()} & calls.keys()


@pytest.fixture(scope="module")
def groups(run, trees):
    """Trained groups' traces by index."""
    return {index: trees[trace_id(group_trace(run["id"], index))] for index in range(STEPS * GROUPS)}


@pytest.fixture(scope="module")
def steps(run, trees):
    """Steps' traces in order."""
    term = next(span.attributes["gradbus.term"] for tree in trees.values() for span in tree.named("train_step"))
    return [trees[trace_id(step_trace(run["id"], step, term))] for step in range(STEPS)]


def test_no_span_is_an_orphan_and_every_trace_has_one_root(trees):
    assert [orphans(tree.spans) for tree in trees.values()] == [[]] * len(trees)
    assert all(len(tree.below[""]) == 1 for tree in trees.values())
    roots = {tree.root.name for tree in trees.values()}
    assert roots == {"group", "train_step", "trainer_start", "score_call", "reference_call"}


def test_a_groups_trace_goes_from_the_prompt_to_the_step_that_trained_it(groups, steps):
    for index, tree in groups.items():
        assert tree.root.name == "group"
        assert tree.root.attributes["gradbus.group.index"] == index
        names = {span.name for span in tree.below[tree.root.id]}
        trains = tree.root.attributes["gradbus.verdict"] == "train"
        wanted = {"send prompts.*", "generate", "score", "admit", "wait_in_log"}
        assert names == (wanted | {"reference", "train"} if trains else wanted), index
        step = steps[index // GROUPS].root
        for span in tree.named("wait_in_log") + tree.named("train"):
            assert span.attributes["gradbus.step"] == index // GROUPS
            assert span.links == [step.trace]


def test_a_step_links_to_all_its_groups(groups, steps):
    for number, tree in enumerate(steps):
        wanted = {groups[index].root.trace for index in range(number * GROUPS, (number + 1) * GROUPS)}
        assert set(tree.one("read").links) == wanted


def generations(groups):
    """(tree, its span `generate`): more than one of a group that was dispatched again because its worker was slow to claim it."""
    return [(tree, generate) for tree in groups.values() for generate in tree.named("generate")]


def test_generation_is_told_sample_by_sample(groups):
    once = dict.fromkeys(("set_aside", "queue", "prefill", "deliver"), 1)
    for tree, generate in generations(groups):
        assert Counter(span.name for span in tree.below[generate.id]) == once | {"sample": SAMPLES}
        samples = tree.named("sample", generate)
        assert sorted(span.attributes["gradbus.sample.n"] for span in samples) == list(range(SAMPLES))
        for span in samples:
            assert 1 <= span.attributes["gen_ai.usage.output_tokens"] <= 6
            assert span.attributes["gradbus.span.versions"] == [generate.attributes["gradbus.policy.version"]]


def test_scores_are_told_part_by_part(groups):
    for tree in groups.values():
        (score,) = [span for span in tree.named("score") if not span.error]
        assert sorted(span.attributes["gradbus.grader.part"] for span in tree.below[score.id]) == ["alike", "letters"]
        parts = zip(score.attributes["gradbus.reward.part.alike"], score.attributes["gradbus.reward.part.letters"], strict=True)
        assert score.attributes["gradbus.rewards"] == pytest.approx([alike + letters for alike, letters in parts])


def test_a_call_for_many_groups_is_a_trace_that_they_link_from(trees, groups):
    called = {link for tree in trees.values() if tree.root.name == "score_call" for link in tree.root.links}
    assert {tree.root.trace for tree in groups.values()} <= called
    for tree in trees.values():
        if tree.root.name in {"score_call", "reference_call"}:
            (client,) = tree.below[tree.root.id]
            if client.error:  # the reference comes up when a run needs it
                continue
            (server,) = tree.below[client.id]
            assert client.name == server.name
            assert (client.service, server.service) == ("gradbus-conductor", CALLED[tree.root.name])


def test_a_steps_trace_goes_on_to_every_workers_activation(run, trees, steps, groups):
    starts = [tree for tree in trees.values() if tree.root.name == "trainer_start"]
    terms = [tree.root.attributes["gradbus.term"] for tree in starts]
    assert [tree.root.trace for tree in starts] == [trace_id(start_trace(run["id"], 0, term)) for term in terms]
    for version, tree in enumerate([*starts, *steps]):
        publish = tree.one("publish_version")
        assert publish.attributes["gradbus.policy.version"] == version
        users = {span.instance for other in trees.values() for span in other.named("generate") if used(span) == version}
        active = {span.instance for span in tree.named("load_weights", publish)}
        assert users <= active, f"version {version} was sampled with by {users}, loaded by {active}"
        for span in tree.named("load_weights"):
            below = {one.name for one in tree.below[span.id]}
            assert below == {"fetch_shards", "load_engine", "gradbus.v1.WeightStoreService/Attest"}
    assert all({"forward", "backward", "optimise", "export"} <= {span.name for span in tree.below[tree.root.id]} for tree in steps)


def used(span):
    return span.attributes["gradbus.policy.version"]


def test_held_out_rows_have_traces_of_their_own(run, trees):
    for version in EVALUATED:
        tree = trees[trace_id(evaluation_trace(run["id"], version, 0))]
        assert tree.root.attributes["gradbus.evaluation.version"] == version
        assert {"send prompts.*", "generate", "score"} == {span.name for span in tree.below[tree.root.id]}


def test_times_add_up(groups, steps):
    for tree in groups.values():
        root, generate = tree.root, min(tree.named("generate"), key=lambda span: span.ended)
        (score,) = [span for span in tree.named("score") if not span.error]
        sent = min(tree.named("send prompts.*"), key=lambda span: span.began)
        stages = [sent, generate, score, *tree.named("reference"), tree.one("admit")]
        assert all(before.began <= after.began for before, after in pairwise(stages))
        assert all(root.began <= span.began and span.ended <= root.ended for span in stages)
        wait = tree.one("wait_in_log")
        assert tree.one("admit").began - CLOCK <= wait.began <= wait.ended
        assert all(wait.ended == span.began for span in tree.named("train"))
        contained(tree, score)
    for tree, generate in generations(groups):
        contained(tree, generate)
        parts = [tree.one(name, generate) for name in ("set_aside", "queue", "prefill")]
        assert [(before.ended, before.began <= before.ended) for before in parts[:2]] == [(after.began, True) for after in parts[1:]]
    for tree in steps:
        root = tree.root
        inside = [span for span in tree.below[root.id] if span.name not in {"publish_version", "checkpoint"}]
        assert all(root.began <= span.began <= span.ended <= root.ended for span in inside if not span.name.startswith("process"))
        busy = [span for span in inside if span.name in {"read", "forward", "backward", "optimise", "export"}]
        assert sum(span.ended - span.began for span in busy) <= root.ended - root.began


def contained(tree, span):
    assert all(span.began <= below.began <= below.ended <= span.ended for below in tree.below[span.id])


@pytest.fixture(scope="module")
def foreign(traced, spec, collector):
    """A run judged by a scorer of one's own, that fails at first."""
    heads, failures = [], iter(range(1))

    class Scorer(BaseHTTPRequestHandler):
        def do_POST(self):
            heads.append(self.headers.get("traceparent"))
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            results = [{"sample_id": one["sample_id"], "status": "ok", "reward": len(one["response"])} for one in body["samples"]]
            answer = json.dumps({"results": results}).encode()
            self.send_response(503 if next(failures, None) is not None else 200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Scorer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run = traced.train(spec(reward={"service": f"http://127.0.0.1:{server.server_port}/"}, schedule={"groups_per_step": 4, "steps": 1}))
    server.shutdown()
    calls = collector.until(lambda: [span for span in collector.spans if span.name == "POST" and not span.error])
    return run, heads, calls


@pytest.fixture(scope="module")
def in_world(traced, spec, worlds):
    """A run in an environment of one's own over HTTP."""
    body = spec(environment={"service": worlds().url, "tool_parser": "plain"}, schedule={"groups_per_step": 4, "steps": 1})
    del body["reward"]
    return traced.train(body)


@pytest.fixture(scope="module")
def with_agent(traced, tmp_path_factory):
    """A run whose episodes an agent plays."""
    url = f"http://127.0.0.1:{json.loads((traced.state / 'ports.json').read_text())['agent.http']}"
    run_id = traced.submit(agent_spec(make_game(tmp_path_factory.mktemp("game")), steps=1))
    with GuessingAgent(url, (traced.state / "secrets" / "api-key").read_text(), run_id):
        return traced.ends(run_id)


def test_each_episode_of_an_agent_is_told_in_its_groups_trace(with_agent, collector):
    def named(name):
        return [span for span in collector.of_run(with_agent["id"]) if span.name == name and span.service == "gradbus-agent"]

    turns = collector.until(lambda: [span for span in collector.of_run(with_agent["id"]) if span.name == "turn"])
    collector.gives_time(lambda: len(named("agent_request")) == len([s for s in collector.of_run(with_agent["id"]) if s.name == "turn"]))
    requests, episodes, waits = map(named, ("agent_request", "agent_episode", "wait_for_agent"))
    roots = {span.id for span in collector.of_run(with_agent["id"]) if span.name == "group"}
    assert {span.parent for span in (*requests, *episodes, *waits)} <= roots
    assert {span.trace for span in requests} == {span.trace for span in turns}
    assert len(episodes) == len(waits) == len({span.attributes["gradbus.episode.id"] for span in episodes})
    assert sum(span.attributes["gradbus.agent.turns"] for span in episodes) == len(requests)
    assert {span.attributes["gradbus.reason"] for span in episodes} == {"its agent ended the episode"}


def test_a_scorer_of_ones_own_is_called_in_the_calls_trace(foreign):
    _, heads, calls = foreign
    assert {(span.trace, span.id) for span in calls} <= {tuple(head.split("-")[1:3]) for head in heads}


def test_a_failed_score_is_told_and_the_next_attempt_too(foreign, collector):
    run, _, _ = foreign
    failed = collector.until(lambda: [span for span in collector.of_run(run["id"]) if span.name == "score" and span.error])
    assert "503" in failed[0].error

    def attempts():
        scores = [span for span in collector.of_run(run["id"]) if span.name == "score" and span.trace == failed[0].trace]
        return [span.error for span in sorted(scores, key=lambda span: span.began)]

    collector.gives_time(lambda: "" in attempts())
    assert attempts()[-1] == ""


def test_a_call_for_scores_goes_on_in_the_service_that_holds_the_reward_model(traced, collector, spec, reward_model):
    run = traced.train(spec(reward={"model": {"path": str(reward_model)}}))

    def traces(name):
        return {span.trace for span in collector.of_run(run["id"]) if span.name == name}

    def linked():
        return {link for span in collector.of_run(run["id"]) if span.name == "score_call" for link in span.links}

    # Services send their spans in batches, so the call that tells of some scores may come after them.
    assert collector.until(lambda: len(traces("score")) == 3 * 4 and linked() == traces("score"))

    def served():
        spans = collector.of_run(run["id"])
        return {span.trace for span in spans if (span.service, span.name) == ("gradbus-reference", "gradbus.v1.RewardService/Score")}

    collector.gives_time(lambda: served() == traces("score_call"))
    assert served() == traces("score_call")
    assert "gradbus-reward" not in {span.service for span in collector.of_run(run["id"])}


def test_what_is_declared_is_emitted_and_what_is_emitted_is_declared(trees, foreign, in_world, with_agent, collector):
    unseen = {entry.name for entry in SPANS}
    collector.gives_time(lambda: all(any(fnmatchcase(span.name, name) for span in list(collector.spans)) for name in unseen))
    for span in list(collector.spans):
        (entry,) = [entry for entry in SPANS if fnmatchcase(span.name, entry.name)] or [pytest.fail(f"{span.name} is not declared")]
        unseen.discard(entry.name)
        assert span.service.removeprefix("gradbus-") in entry.services, span
        assert span.attributes.pop("openinference.span.kind", "") == entry.kind, span
        strange = [name for name in span.attributes if not any(fnmatchcase(name, known) for known in entry.attributes)]
        assert strange == [], span.name
    assert unseen == set()
