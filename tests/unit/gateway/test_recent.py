"""Findings are kept as long as they are used."""

from gradbus_gateway.intake.lru_cache import Recent


def test_the_finding_that_was_not_used_for_longest_goes_first():
    recent = Recent(most=2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]


def test_a_newer_finding_takes_the_place_of_an_older():
    recent = Recent(most=1)
    recent.put("a", 1)
    recent.put("a", 2)
    assert recent.get("a") == 2
