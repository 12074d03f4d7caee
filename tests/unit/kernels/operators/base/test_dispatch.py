from __future__ import annotations

import pytest
import torch

from gradbus_kernels.operators import provenance, using
from gradbus_kernels.operators.base.dispatch import VARIABLE, choose

ALL = ("reference", "cpu", "triton")


def test_a_tensor_on_the_cpu_gets_the_cpu_implementation():
    assert choose("an_operator", torch.ones(2), ALL) == "cpu"


def test_what_is_not_offered_falls_back_to_the_reference():
    assert choose("an_operator", torch.ones(2), ("reference",)) == "reference"


def test_what_is_asked_for_runs_and_only_within():
    with using("reference"):
        assert choose("an_operator", torch.ones(2), ALL) == "reference"
    assert choose("an_operator", torch.ones(2), ALL) == "cpu"


def test_the_environment_asks_for_the_whole_process_and_the_code_may_differ(monkeypatch):
    monkeypatch.setenv(VARIABLE, "reference")
    assert choose("an_operator", torch.ones(2), ALL) == "reference"
    with using("cpu"):
        assert choose("an_operator", torch.ones(2), ALL) == "cpu"


def test_what_no_operator_has_is_refused_by_name(monkeypatch):
    with pytest.raises(ValueError, match="implementation is 'numpy'; set it to one of reference, cpu, triton"), using("numpy"):
        pass
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ValueError, match="GRADBUS_KERNELS is 'fast'"):
        choose("an_operator", torch.ones(2), ALL)


def test_what_an_operator_lacks_is_refused():
    with using("triton"), pytest.raises(ValueError, match="an_operator has no implementation 'triton'"):
        choose("an_operator", torch.ones(2), ("reference", "cpu"))


def test_provenance_says_what_ran_last():
    with using("reference"):
        choose("recorded", torch.ones(2, dtype=torch.bfloat16), ALL)
    assert (provenance()["recorded"].implementation, provenance()["recorded"].device, provenance()["recorded"].dtype) == (
        "reference",
        "cpu",
        torch.bfloat16,
    )
    assert "never_called" not in provenance()
