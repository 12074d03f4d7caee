"""What a sample keeps of its messages, and what is counted of it."""

from gradbus.v1.sample_pb2 import SPAN_KIND_POLICY, SPAN_KIND_USER, Fork, Sample, Span
from gradbus_rollout.episodes import metrics
from gradbus_rollout.episodes.answers import shortened


def test_of_a_long_message_the_beginning_and_the_end_are_kept():
    assert shortened("a" * 65_536) == "a" * 65_536
    kept = shortened("b" + "a" * 4_000_000 + "e")
    assert len(kept) <= 65_536
    assert (kept[0], kept[-1]) == ("b", "e")
    assert "characters cut]" in kept


def test_forks_are_those_of_the_sample_also_without_tokens_of_its_own(monkeypatch):
    counted = {}
    monkeypatch.setattr(
        metrics.PROCESS, "count", lambda name, number, attributes=None: counted.update({(name, *(attributes or {}).values()): number})
    )
    spans = [Span(start=0, end=3, kind=SPAN_KIND_POLICY), Span(start=3, end=5, kind=SPAN_KIND_USER)]
    samples = [Sample(spans=spans), Sample(forks=[Fork(spans=spans), Fork(spans=spans)])]
    samples[0].episode.turns.add()
    metrics.count_episodes(samples)
    assert counted == {
        ("gradbus.episode.turns",): 1,
        ("gradbus.episode.forks",): 2,
        ("gradbus.episode.tokens", "policy"): 9,
        ("gradbus.episode.tokens", "user"): 6,
    }
