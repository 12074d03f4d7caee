"""What does not fit is refused under its name, with the remedy."""

from dataclasses import replace

import pytest
import torch

from gradbus_kernels.operators import PreferenceSettings, preference_loss

LENGTHS = [(3, 2), (1, 2)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"loss": "kto"}, r"^loss: is 'kto'; pass one of dpo, ipo, simpo, orpo"),
        ({"beta": 0.0}, r"^beta: is 0\.0; pass a positive number"),
        ({"beta": float("nan")}, r"^beta: is nan; pass a positive number"),
        ({"beta": float("inf")}, r"^beta: is inf; pass a positive number"),
        ({"margin": -0.1}, r"^margin: is -0\.1; pass 0 or more"),
        ({"label_smoothing": 0.5}, r"^label_smoothing: is 0\.5; pass a share from 0 to below 0\.5"),
        ({"label_smoothing": -0.1}, r"^label_smoothing: is -0\.1; pass a share"),
        ({"label_smoothing": 0.1, "loss": "simpo"}, r'^label_smoothing: is 0\.1 and "simpo" has none; pass 0, or loss "dpo"'),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_are_none_or_do_not_go_together(wrong, words):
    with pytest.raises(ValueError, match=words):
        PreferenceSettings(**wrong)


def test_dpo_and_ipo_need_a_reference_and_say_so(make_pairs, loss_name):
    logprobs, tokens = make_pairs(LENGTHS)
    settings, tokens = PreferenceSettings(loss_name), replace(tokens, reference_logprobs=None)
    assert settings.needs_reference == (loss_name in {"dpo", "ipo"})
    if settings.needs_reference:
        words = rf'^tokens\.reference_logprobs: are missing and "{loss_name}" needs them; start the reference service, or choose'
        with pytest.raises(ValueError, match=words):
            preference_loss(logprobs, tokens, settings)
    else:
        assert preference_loss(logprobs, tokens, settings).total.isfinite()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda logprobs, tokens: (logprobs[None], tokens), r"^logprobs: has shape \(1, 8\); pass \(any\)"),
        (lambda logprobs, tokens: (logprobs.long(), tokens), r"^logprobs: is torch\.int64; pass float32"),
        (lambda logprobs, tokens: (logprobs[1:], tokens), r"^tokens\.sequences: is torch\.int64 \(8,\) on cpu; pass torch\.int64 \(7,\)"),
        (lambda logprobs, tokens: (logprobs, replace(tokens, sequences=tokens.sequences.int())), r"^tokens\.sequences: is torch\.int32"),
        (lambda logprobs, tokens: (logprobs, replace(tokens, trained=tokens.trained.long())), r"^tokens\.trained: is torch\.int64 \(8,\)"),
        (lambda logprobs, tokens: (logprobs, replace(tokens, trained=tokens.trained[1:])), r"^tokens\.trained: is torch\.bool \(7,\)"),
        (
            lambda logprobs, tokens: (logprobs, replace(tokens, reference_logprobs=logprobs[1:])),
            r"^tokens\.reference_logprobs: has shape \(7,\); pass \(8\)",
        ),
        (
            lambda logprobs, tokens: (logprobs.to("meta"), tokens),
            r"^tokens\.sequences: .* on cpu; pass torch\.int64 \(8,\) on meta, like logprobs",
        ),
    ],
    ids=["2-d", "integers", "too-many-sequences", "int32", "mask-of-integers", "short-mask", "short-reference", "device"],
)
def test_shapes_dtypes_and_devices(make_pairs, changed, words):
    with pytest.raises(ValueError, match=words):
        preference_loss(*changed(*make_pairs(LENGTHS)), PreferenceSettings())


@pytest.mark.parametrize(
    ("sequences", "words"),
    [
        ([0, 0, 1, 1, 2, 2, 2, 2], "hold 3 sequences, an odd number; pass whole pairs, each a chosen and then a rejected response"),
        ([1, 1, 1, 0, 0, 2, 3, 3], "are not 0, 1, 2 and so on in order; pass the tokens sequence by sequence and leave none out"),
        ([0, 0, 0, 2, 2, 3, 3, 3], "are not 0, 1, 2 and so on"),
        ([1, 1, 1, 2, 2, 3, 4, 4], "are not 0, 1, 2 and so on"),
        ([-1, 0, 0, 1, 1, 2, 3, 3], "are not 0, 1, 2 and so on"),
        ([0, 0, 0, 1, 1, 2, 3, 2**62], "are not 0, 1, 2 and so on"),
    ],
    ids=["odd", "unordered", "gap", "from-1", "negative", "huge"],
)
def test_sequences_that_are_no_pairs(make_pairs, sequences, words):
    logprobs, tokens = make_pairs(LENGTHS)
    with pytest.raises(ValueError, match=rf"^tokens\.sequences: {words}"):
        preference_loss(logprobs, replace(tokens, sequences=torch.tensor(sequences)), PreferenceSettings())


def test_a_sequence_without_a_trained_token_is_named(make_pairs, loss_name):
    logprobs, tokens = make_pairs(LENGTHS)
    trained = tokens.trained & (tokens.sequences != 1) & (tokens.sequences != 2)
    with pytest.raises(ValueError, match=r"^tokens\.trained: is False for all tokens of sequences \[1, 2\]; leave their pairs out"):
        preference_loss(logprobs, replace(tokens, trained=trained), PreferenceSettings(loss_name))


@pytest.mark.parametrize("pairs", [-1, 0, 1])
def test_an_update_has_at_least_the_pairs_of_its_micro_batch(make_pairs, pairs):
    logprobs, tokens = make_pairs(LENGTHS)
    with pytest.raises(ValueError, match=rf"^tokens\.pairs: is {pairs} and there are 2 here; pass the number of pairs of the whole update"):
        preference_loss(logprobs, replace(tokens, pairs=pairs), PreferenceSettings())
