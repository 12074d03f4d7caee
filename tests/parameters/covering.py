"""Products of parameters of which the usual tests run a part."""

import itertools

import pytest


def covering(*columns):
    """Each combination of one value of every column, for `parametrize`. Every value is in a usual combination; most combinations are slow.

    The usual ones lie on diagonals, of two columns on one, of three on two, so that no two columns always go together.
    """
    columns = [list(column) for column in columns]
    longest = max(map(len, columns))
    shifts = range(len(columns) - 1)
    usual = {tuple((at + shift * turn) % len(column) for turn, column in enumerate(columns)) for at in range(longest) for shift in shifts}
    combinations = []
    for places in itertools.product(*(range(len(column)) for column in columns)):
        values = [column[place] for column, place in zip(columns, places, strict=True)]
        combinations.append(pytest.param(*values, marks=[] if places in usual else pytest.mark.slow))
    return combinations
