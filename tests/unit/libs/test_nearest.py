"""What a message suggests in the place of an unknown name."""

import difflib

import pytest

from gradbus.nearest import nearest_name


@pytest.mark.parametrize(("given", "expected"), [("anwser", "answer"), ("promt", "prompt"), ("entirely else", ""), ("", "")])
def test_the_name_that_is_most_alike_is_suggested(given, expected):
    assert nearest_name(given, ["question", "prompt", "answer"]) == expected


def test_names_of_any_length_and_number_are_compared_as_little_as_short_ones(monkeypatch):
    compared = []

    def close(given, names, n):
        compared.extend((given, name) for name in names)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", close)
    nearest_name("ab" * 500, (f"{'ab' * (n % 100)}{n}" for n in range(10_000)))
    assert len(compared) == 100
    assert max(len(name) for pair in compared for name in pair) == 40
