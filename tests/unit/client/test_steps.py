"""What a run may be called."""

import pytest

from gradbus.client import steps
from gradbus.errors import ApiError, RunNameError, api_error
from gradbus.resources.history import HistoryResource, HistoryTable
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


EMPTY = HistoryTable(width=1, first=[], last=[], steps=[], first_at=[], last_at=[], columns={})


def history_steps(seconds, *are_whole):
    """What `history` does and returns of a gateway that answers so."""
    work, did, answers = steps.history(OLD, {"start": 3}, seconds), [], iter(are_whole)
    try:
        step = next(work)
        while True:
            did.append(step if isinstance(step, float) else step.params)
            answer = None
            if not isinstance(step, float):
                answer = HistoryResource(run_id=OLD, newest=7, is_whole=next(answers), metrics=EMPTY, evaluations=EMPTY, events=[])
            step = work.send(answer)
    except StopIteration as end:
        return did, end.value.is_whole


@pytest.mark.parametrize("seconds", [None, 3600.0])
def test_a_history_is_asked_for_with_pauses_until_it_is_whole(seconds):
    asked = {"from": 3}
    assert history_steps(seconds, False, False, True) == ([asked, 1.0, asked, 1.0, asked], True)


def test_a_history_that_is_not_read_in_time_is_a_timeout_that_says_how_far_it_is():
    assert history_steps(0.0, True) == ([{"from": 3}], True)
    with pytest.raises(TimeoutError, match="up to id 7 after 0 s"):
        history_steps(0.0, False)
