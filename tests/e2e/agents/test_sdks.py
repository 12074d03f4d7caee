"""The SDKs play whole runs through a proxy that cuts a tenth of the answers: no episode is lost or doubled, no turn drawn twice."""

import itertools
import json

import pytest

from gradbus.client import document

from .cutting_proxy import CuttingProxy
from .talking_agent import Chat, Messages, Responses, TalkingAgent

MODES = ("sync", "async", "stream")


def check_sample(sample, plays):
    """The sample has every turn that its agent was told, once, and no other. The agent claimed it once, and its end was taken."""
    (played,) = plays
    assert (played.attempt, played.ended, sample["episode"]["attempt"]) == (0, 200, 0)
    sequences = [sample["tokens"], *sample["tokens"]["forks"]]
    turns = [tuple(sequences[turn["sequence"]]["ids"][turn["start"] : turn["end"]]) for turn in sample["episode"]["turns"]]
    trained = [span for span in sample["versions"] if span["trainable"]]
    assert sorted(tuple(sequences[span["sequence"]]["ids"][span["start"] : span["end"]]) for span in trained) == sorted(turns)
    told = sorted(played.told, key=lambda one: one.turn)
    assert [one.turn for one in told] == list(range(len(turns))), "each drawn turn was told once"
    assert [one.count for one in told] == list(map(len, turns))
    assert [one.text for one in told] == [turn["text"] for turn in sample["episode"]["turns"]]
    assert all(one.ids in {None, ids} for one, ids in zip(told, turns, strict=True))


def plays_of(agent):
    """What was played, by index and number in the group."""
    found = {}
    for episode, plays in agent.played.items():
        purpose, _, index, n = episode.split(".")
        assert purpose == "train"
        found.setdefault(f"{index}.{n}", []).extend(plays)
    return found


def all_samples(lab, run_id):
    """Page by page, for a page has at most a thousand."""
    found, after = [], ""
    while after is not None:
        page = document(lab.client.samples_page(run_id, limit=200, include="tokens", after=after))
        found, after = [*found, *page["data"]], page["next_after"]
    return found


def play(lab, spec, ways, seconds=240.0):
    """Plays a run through the proxy and checks all of it. Returns how many turns were drawn."""
    run_id = lab.submit(spec)
    port = json.loads((lab.state / "ports.json").read_text())["agent.http"]
    with CuttingProxy(port, 0.1) as proxy, TalkingAgent(lab, run_id, proxy, ways) as agent:
        run = lab.ends(run_id, seconds=seconds)
    samples, plays = all_samples(lab, run_id), plays_of(agent)
    assert len(samples) == run["spec"]["rollout"]["group_size"] * spec["schedule"]["groups_per_step"] * spec["schedule"]["steps"]
    assert {sample["id"] for sample in samples} == set(plays), "none is lost"
    for sample in samples:
        check_sample(sample, plays[sample["id"]])
    assert proxy.cuts > proxy.requests / 20
    return sum(len(sample["episode"]["turns"]) for sample in samples)


def test_agents_of_all_sdks_lose_and_double_nothing_when_answers_are_cut(lab, talk_spec):
    ways = list(itertools.product((Chat, Responses, Messages), MODES))
    assert play(lab, talk_spec(2, groups=2), ways) > 8 * 16


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("interface", [Chat, Responses, Messages])
def test_five_hundred_episodes_lose_and_double_nothing(lab, talk_spec, interface):
    assert play(lab, talk_spec(32), [(interface, mode) for mode in MODES], seconds=1500.0) > 500 * 8
