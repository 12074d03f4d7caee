"""Sequences of an episode: what goes on where, and what begins anew."""

from gradbus.formats.tokens import pack_logprobs
from gradbus.tokenizer.turns import Extension, TurnsSoFar
from gradbus_rollout.engines.base import Completion, TokenSpan
from gradbus_rollout.episodes.episode import PlayedEpisode
from gradbus_rollout.episodes.transcript import TokenSequence, Transcript

TOOLS = '[{"name": "f"}]'
SAID = Extension((7, 8), ((0, 1, "frame"), (1, 2, "user")))


def drawn(*ids, version=3):
    return Completion(ids, pack_logprobs([-1.0] * len(ids)), (TokenSpan(0, len(ids), version),), "stop", (10, 20))


def test_a_turn_that_nothing_follows_goes_on_in_its_sequence_and_another_one_in_a_copy():
    transcript = Transcript()
    first = TokenSequence((1, 2), TOOLS)
    transcript.draw(first, drawn(3, 4), seed=5)
    assert transcript.up_to(0) == TurnsSoFar((1, 2, 3, 4), ((2, 4),))
    assert transcript.extended(0, SAID) is first
    transcript.draw(first, drawn(9), seed=6)
    copied = transcript.extended(0, SAID)
    assert (copied.prompt_ids, copied.token_ids, copied.tools_json) == ((1, 2, 3, 4, 7, 8), [], TOOLS)
    assert transcript.sequences == [first], "one without a turn is none yet"
    assert (copied.turns_before, copied.after_turn) == (((2, 4),), None), "its prompt has a turn as it was drawn"
    transcript.draw(copied, drawn(9, version=4), seed=7)
    assert transcript.extended(2, SAID) is copied
    assert transcript.extended(1, SAID) is first
    assert [(turn.sequence, turn.start, turn.end) for turn in transcript.turns] == [(0, 0, 2), (0, 4, 5), (1, 0, 1)]
    assert [(span.start, span.end, span.turn, span.trainable, span.version) for span in copied.spans] == [
        (0, 1, 2, True, 4),
        (1, 2, 2, False, 4),
        (2, 3, 2, False, 4),
    ]
    assert first.token_ids == [3, 4, 7, 8, 9, 7, 8]
    assert (transcript.drawn, len(first), transcript.began, transcript.ended) == (4, 9, 10, 20)


def test_a_sequence_without_the_thinking_so_far_goes_on_from_a_turn():
    transcript = Transcript()
    first = TokenSequence((1, 2), TOOLS)
    transcript.draw(first, drawn(3, 4), seed=5)
    rewritten = transcript.rewritten(0, SAID, (1, 2, 4))
    assert (rewritten.prompt_ids, rewritten.token_ids, rewritten.tools_json) == ((1, 2, 4, 7, 8), [], TOOLS)
    assert first.token_ids == [3, 4], "nothing follows the turn where it was drawn"
    transcript.draw(rewritten, drawn(9), seed=6)
    transcript.extended(1, SAID)
    transcript.draw(rewritten, drawn(6), seed=7)
    assert [turn.after_turn if turn.HasField("after_turn") else None for turn in transcript.turns] == [None, 0, None]
    assert [(turn.sequence, turn.start, turn.end) for turn in transcript.turns] == [(0, 0, 2), (1, 0, 1), (1, 3, 4)]
    assert transcript.up_to(2) == TurnsSoFar((1, 2, 4, 7, 8, 9, 7, 8, 6), ((5, 6), (8, 9))), "turns before it have no thinking any more"
    assert [transcript.length_to(number) for number in range(3)] == [len(transcript.up_to(number).token_ids) for number in range(3)]


def test_equal_sequences_are_still_two():
    """Sub-agents may ask the same."""
    transcript = Transcript()
    for seed in (1, 2):
        transcript.draw(TokenSequence((1,)), drawn(4), seed)
    assert [turn.sequence for turn in transcript.turns] == [0, 1]


def test_an_episode_has_a_sequence_of_its_own_only_after_the_groups_prompt():
    transcript = Transcript()
    for prompt in ((1,), (2,)):
        transcript.draw(TokenSequence(prompt), drawn(4), 1)
    played = PlayedEpisode((1,), transcript, end=1, outcome=None)
    one, two = transcript.sequences
    assert played.sequences_after((1,)) == (one, [two])
    own, forks = played.sequences_after((2,))
    assert (own.token_ids, forks) == ([], [one, two]), "its second sequence begins as the group does, and is still a fork"
    own, forks = PlayedEpisode((1,), Transcript(), end=1, outcome=None).sequences_after((1,))
    assert (own.token_ids, forks) == ([], [])
