"""What a run may be called."""

import pytest

from gradbus.client import steps
from gradbus.errors import ApiError, RunNameError, api_error
from gradbus.resources.page import Page
from gradbus.resources.runs import RunSummary

OLD = "run-000000000001-aaaaaa"


def run(run_id, name):
    given = {"id": run_id, "name": name, "kind": "rl", "state": "queued", "desired": "running", "steps": 1, "progress": {}}
    return RunSummary.model_validate(given | {"created_at": None})


class Gateway:
    """Lists `newest`; knows the run `OLD` besides, and cannot read a run whose id ends in `f`."""

    def __init__(self, *newest):
        self._newest = [run(*one) for one in newest]

    def answer(self, call):
        if call.path == "/v1/runs":
            return Page(data=self._newest, has_more=bool(self._newest))
        if call.path.endswith(OLD):
            return run(OLD, "old")
        raise api_error(500 if call.path.endswith("f") else 404, {"title": "Refused"})


def find_run(gateway, given):
    work, answer = steps.find_run(given), None
    try:
        while True:
            call = work.send(answer)
            try:
                answer = gateway.answer(call)
            except ApiError as error:
                call = work.throw(error)
    except StopIteration as end:
        return end.value


FULL = Gateway(("run-000000000009-cccccc", "sums"), ("run-000000000008-bbbbbb", "sums"))


@pytest.mark.parametrize("given", ["last", "sums", "run-000000000009", "run-000000000009-cccccc"])
def test_a_run_goes_by_last_by_its_name_and_by_the_start_of_its_id(given):
    assert find_run(FULL, given).id == "run-000000000009-cccccc"


def test_a_run_that_is_too_old_for_the_list_goes_by_its_whole_id():
    assert find_run(FULL, OLD).id == OLD
    with pytest.raises(RunNameError, match="give the full id of an older one"):
        find_run(FULL, OLD[:-1])


@pytest.mark.parametrize(
    ("given", "words"), [("run-0", "the beginning of 2 run ids"), ("", "no run is called ''"), ("products", "gradbus runs")]
)
def test_what_names_no_run_or_several_is_said(given, words):
    with pytest.raises(RunNameError, match=words):
        find_run(FULL, given)


def test_an_empty_name_is_not_the_start_of_the_only_run():
    with pytest.raises(RunNameError, match="no run is called ''"):
        find_run(Gateway(("run-000000000009-cccccc", "sums")), "")


def test_any_refusal_but_an_unknown_id_is_passed_on():
    with pytest.raises(ApiError, match="500"):
        find_run(FULL, "run-000000000001-ffffff")


def test_without_any_run_it_says_how_to_submit_one():
    with pytest.raises(RunNameError, match="gradbus run SPEC"):
        find_run(Gateway(), "last")
