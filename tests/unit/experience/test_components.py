"""Components of rewards, gathered over samples."""

from gradbus.experience.components import MAX_NAMES, add_components


def test_values_of_one_name_come_together():
    gathered = {}
    add_components(gathered, {"a": 1.0, "b": 2.0})
    add_components(gathered, {"a": 3.0})
    assert gathered == {"a": [1.0, 3.0], "b": [2.0]}


def test_names_that_differ_from_sample_to_sample_are_bounded_and_the_wanted_one_is_kept():
    gathered = {}
    for n in range(1000):
        add_components(gathered, {f"{n}": 1.0, f"{n}.more": 1.0}, always="wanted")
    add_components(gathered, {"wanted": 0.5, "0": 2.0}, always="wanted")
    assert len(gathered) == MAX_NAMES + 1
    assert (gathered["wanted"], gathered["0"]) == ([0.5], [1.0, 2.0])
