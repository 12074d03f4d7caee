import pytest

from gradbus.v1 import reward_pb2
from gradbus_reward.graders.confined import ATTEMPTS
from gradbus_reward.sandbox import pool as pool_module
from gradbus_reward.sandbox.pool import BATCH, GradeCall, PoolSettings

OK, INVALID, ERROR = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID, reward_pb2.REWARD_STATUS_ERROR

EXACT = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
LENGTH = {"type": "python", "source": "def grade(sample, item):\n    return {'reward': len(sample['output_text']), 'n': item['n']}"}
HANGS = "def grade(sample, item):\n    while sample['output_text'] == 'hang': pass\n    return 1.0"
DIES = "import os\ndef grade(sample, item):\n    if sample['output_text'] == 'die': os._exit(3)\n    return 1.0"


async def test_string_check_scores_each_sample(grader_scorer, ask):
    results = await grader_scorer(EXACT).score(ask("12", "13"), 5.0)
    assert [(result.sample_id, result.status, result.reward) for result in results] == [("0.0", OK, 1.0), ("0.1", OK, 0.0)]


async def test_a_template_that_does_not_fit_the_rows_is_an_error_that_names_it(grader_scorer, ask):
    (result,) = await grader_scorer(EXACT | {"reference": "{{ item.solution }}"}).score(ask("12"), 5.0)
    assert result.status == ERROR
    assert "{{ item.solution }}" in result.reason


async def test_a_text_too_long_to_compare_is_invalid_for_it_will_not_shrink(grader_scorer, ask):
    first, second = await grader_scorer(EXACT | {"type": "text_similarity"}).score(ask("x" * 70_000, "12"), 10.0)
    assert [(first.status, second.status), second.reward] == [(INVALID, OK), 1.0]


async def test_multi_joins_its_parts_and_reports_them(grader_scorer, ask):
    grader = {"type": "multi", "graders": {"exact": EXACT, "length": LENGTH}, "calculate_output": "0.5 * exact + length / 4"}
    first, second = await grader_scorer(grader).score(ask("12", "123"), 20.0)
    assert (first.reward, dict(first.components)) == (1.0, {"exact": 1.0, "length": 2.0, "length.n": 0.0})
    assert (second.reward, dict(second.components)) == (0.75, {"exact": 0.0, "length": 3.0, "length.n": 1.0})


async def test_multi_is_invalid_where_a_part_or_the_formula_has_no_value(grader_scorer, ask):
    raises = {"type": "python", "source": "def grade(sample, item):\n    return 1 / (len(sample['output_text']) - 1)"}
    grader = {"type": "multi", "graders": {"exact": EXACT, "ratio": raises}, "calculate_output": "1 / (1 - exact) + ratio"}
    a, b, c = await grader_scorer(grader).score(ask("x", "12", "123"), 20.0)
    assert (a.status, a.reason.startswith("ratio: ZeroDivisionError")) == (INVALID, True)
    assert (b.status, "guard it" in b.reason) == (INVALID, True)
    assert c.status == OK


@pytest.mark.parametrize(
    "value",
    [
        "None",
        "'1'",
        "float('nan')",
        "float('inf')",
        "{}",
        "{'reward': None}",
        "{'reward': 1, 'x': 'y'}",
        "[1]",
        "1j",
        "10**5000",
        "{'reward': 1, 'x': -(10**5000)}",
        "__import__('decimal').Decimal(1)",
        "(n for n in [1.0])",
        "type('F', (float,), {'__float__': lambda self: float('nan')})(1.0)",
    ],
)
async def test_what_is_no_finite_number_is_invalid_for_it_will_not_change(grade, value):
    (result,) = await grade(f"def grade(sample, item):\n    return {value}")
    assert result.status == INVALID
    assert "grade() returned" in result.reason


async def test_a_formula_whose_parts_cannot_be_compared_is_invalid(grader_scorer, ask):
    grader = {"type": "multi", "graders": {"exact": EXACT}, "calculate_output": "min((0 - exact) ** 0.5, 1)"}
    good, bad = await grader_scorer(grader).score(ask("x", "12"), 20.0)
    assert (good.status, bad.status) == (OK, INVALID)


@pytest.mark.parametrize("value", ["1e200", "-1e39", "10**300", "1000001", "{'reward': 1, 'x': 1e200}"])
async def test_a_number_out_of_range_is_invalid_for_it_will_not_change(grade, value):
    (result,) = await grade(f"def grade(sample, item):\n    return {value}")
    assert result.status == INVALID
    assert "scale it to at most" in result.reason


async def test_a_formula_out_of_range_is_invalid(grader_scorer, ask):
    grader = {"type": "multi", "graders": {"exact": EXACT}, "calculate_output": "1e200 * exact"}
    good, bad = await grader_scorer(grader).score(ask("x", "12"), 20.0)
    assert (good.status, good.reward, bad.status) == (OK, 0.0, INVALID)
    assert "1e+200" in bad.reason


async def test_results_of_a_hundred_megabytes_are_cut_short_or_refused(grade):
    big = "'x' * 100_000_000"
    source = f"def grade(sample, item):\n    if item['n']: raise ValueError({big})\n    return {{{big}: 1.0, 'reward': 1.0}}"
    first, second = await grade(source, "a", "b")
    assert (first.status, second.status) == (INVALID, INVALID)
    assert len(first.reason) < 1000
    assert len(second.reason) <= 500


@pytest.mark.parametrize(
    ("value", "reward"), [("True", 1.0), ("-0.0", 0.0), ("type('F', (float,), {'__float__': lambda self: 0.5})('nan')", 0.5)]
)
async def test_what_converts_to_a_finite_number_is_that_number(grade, value, reward):
    (result,) = await grade(f"def grade(sample, item):\n    return {value}")
    assert (result.status, result.reward) == (OK, reward)


@pytest.mark.parametrize(
    "body",
    [
        "class E(BaseException):\n    def __str__(self): raise self\ndef grade(s, i):\n    raise E",
        "class D(dict):\n    def __len__(self): raise SystemExit\ndef grade(s, i):\n    return D(reward=1.0)",
        "class N:\n    def __str__(self): raise KeyboardInterrupt\ndef grade(s, i):\n    return {'reward': 1.0, N(): 2.0}",
    ],
)
async def test_objects_that_fail_while_they_are_read_spoil_their_sample_and_not_the_process(grade, body):
    (result,) = await grade(body)
    assert (result.status, "died" in result.reason) == (INVALID, False)


async def test_an_exception_spoils_its_own_sample(grade):
    a, b, c = await grade("def grade(sample, item):\n    return 1 / (item['n'] - 1)", "x", "y", "z")
    assert [a.reward, c.reward] == [-1.0, 1.0]
    assert (b.status, b.reason) == (INVALID, "ZeroDivisionError: division by zero (line 2 of the grader)")


@pytest.mark.parametrize("statement", ["raise SystemExit", "raise KeyboardInterrupt", "return grade(sample, item)", "return [0] * 10**10"])
async def test_a_grader_cannot_leave_by_exceptions(grade, statement):
    (result,) = await grade(f"def grade(sample, item):\n    {statement}")
    assert result.status == INVALID


async def test_what_one_sample_changes_in_its_item_no_other_part_sees(grader_scorer, ask):
    spoils = {"type": "python", "source": "def grade(sample, item):\n    item['n'] += 1\n    return item['n']"}
    grader = {"type": "multi", "graders": {"a": spoils, "b": spoils}, "calculate_output": "a + b"}
    (result,) = await grader_scorer(grader).score(ask("x"), 20.0)
    assert result.reward == 2.0


@pytest.mark.parametrize(("source", "word", "reason"), [(HANGS, "hang", "stopped after"), (DIES, "die", "exit code 3")])
async def test_one_that_stops_the_process_leaves_its_neighbours_their_rewards(grade, source, word, reason):
    texts = ["good"] * (2 * BATCH)
    texts[5] = texts[BATCH + 7] = word
    results = await grade(source, *texts, seconds=12.0)
    assert [n for n, result in enumerate(results) if result.status != OK] == [5, BATCH + 7]
    assert results[5].status == ERROR
    assert reason in results[5].reason


async def test_a_sample_that_keeps_stopping_the_process_is_given_up(grader_scorer, ask):
    scorer = grader_scorer({"type": "python", "source": DIES})
    seen = [(await scorer.score(ask("good", "die"), 20.0))[1].status for _ in range(ATTEMPTS)]
    assert seen == [ERROR, ERROR, INVALID]


async def test_held_out_samples_of_other_versions_have_the_same_ids_and_attempts_of_their_own(grader_scorer, ask):
    scorer = grader_scorer({"type": "python", "source": DIES})
    for _ in range(ATTEMPTS):
        await scorer.score(ask("good", "die"), 20.0)
    assert [result.status for result in await scorer.score(ask("good", "die then"), 20.0)] == [OK, OK]
    assert [result.status for result in await scorer.score(ask("die", "die"), 20.0)] == [ERROR, INVALID]


async def test_a_name_too_long_for_a_component_is_the_graders_fault_and_is_not_tried_again(grade):
    (result,) = await grade("def grade(sample, item):\n    return {'reward': 1.0, 'x' * 201: 2.0}")
    assert result.status == INVALID
    assert "201 characters" in result.reason


async def test_parts_with_more_components_than_fit_keep_their_rewards(grader_scorer, ask):
    many = {"type": "python", "source": "def grade(s, i):\n    return {'reward': 1.0} | {f'c{n}': 0.5 for n in range(60)}"}
    grader = {"type": "multi", "graders": {"a": many, "b": many}, "calculate_output": "a + b"}
    (result,) = await grader_scorer(grader).score(ask("x"), 20.0)
    assert (result.status, result.reward) == (OK, 2.0)
    assert len(result.components) == 64
    assert (result.components["a"], result.components["b"], result.components["a.c0"]) == (1.0, 1.0, 0.5)


async def test_a_grader_that_hangs_on_whatever_it_gets_fails_for_good(grader_scorer, ask, monkeypatch):
    scorer = grader_scorer({"type": "python", "source": HANGS})
    for _ in range(ATTEMPTS + 1):
        results = await scorer.score(ask(*["hang"] * 40), 2.0)  # a child begins in the time of a call
        assert {(result.status, result.permanent) for result in results} == {(ERROR, True)}
    assert "scores no sample" in results[0].reason
    monkeypatch.setattr(pool_module, "_USELESS_SECONDS", 0.0)
    assert [result.status for result in await scorer.score(ask("good"), 20.0)] == [OK], "a sample that works ends the suspicion"
    assert [result.permanent for result in await scorer.score(ask("hang"), 1.0)] == [False]


async def test_a_grader_that_no_longer_works_fails_for_good_until_it_works_again(grader_scorer, ask, monkeypatch):
    monkeypatch.setattr(pool_module, "_USELESS_SECONDS", 0.0)
    source = "import time\ndef grade(sample, item):\n    while sample['output_text'] != 'good': time.sleep(60)\n    return 1.0"
    scorer = grader_scorer({"type": "python", "source": source})
    assert [result.status for result in await scorer.score(ask("good"), 20.0)] == [OK]
    hung = [await scorer.score(ask(f"hang {n}"), 6.0) for n in range(pool_module._VAIN_CALLS)]
    assert [result.permanent for results in hung for result in results] == [False] * (pool_module._VAIN_CALLS - 1) + [True]
    assert [result.status for result in await scorer.score(ask("good"), 20.0)] == [OK]
    assert [result.permanent for result in await scorer.score(ask("hang"), 1.0)] == [False]


async def test_samples_that_hang_at_the_front_do_not_keep_the_others_from_being_tried(grader_scorer, ask, monkeypatch):
    monkeypatch.setattr(pool_module, "_USELESS_SECONDS", 0.0)
    scorer = grader_scorer({"type": "python", "source": HANGS})
    request = ask("hang", "hang", "hang", "good")
    seen = [[(result.status, result.permanent) for result in await scorer.score(request, 8.0)] for _ in range(2)]
    assert seen == [[(ERROR, True)] * 4, [(ERROR, False)] * 3 + [(OK, False)]]


async def test_samples_that_a_grader_cannot_tell_apart_are_graded_once(grader_scorer, ask):
    counts = {"type": "python", "source": "calls = []\ndef grade(sample, item):\n    calls.append(sample)\n    return len(calls)"}
    request = ask("a", "b", "a", "b", n=0)
    request.samples[3].finish_reason = "length"
    results = await grader_scorer(counts).score(request, 20.0)
    assert [result.reward for result in results] == [1.0, 2.0, 1.0, 3.0]
    assert [result.sample_id for result in results] == [sample.sample_id for sample in request.samples]


async def test_a_source_that_does_not_load_is_an_error_for_all(grade):
    results = await grade("def grade(sample, item)\n", "a", "b")
    assert {result.status for result in results} == {ERROR}
    assert "SyntaxError" in results[0].reason


async def test_python_is_off_unless_the_operator_allows_it(grader_scorer, ask):
    (result,) = await grader_scorer(LENGTH, python_graders=False).score(ask("x"), 5.0)
    assert result.status == ERROR
    assert "graders of type python and code are off" in result.reason


async def test_calls_side_by_side_share_the_processes(grader_scorer, ask):
    import asyncio

    scorer = grader_scorer(LENGTH, pool=PoolSettings(processes=2))
    calls = [scorer.score(ask(*["x" * size] * 70), 30.0) for size in (1, 2, 3)]
    for size, results in zip((1, 2, 3), await asyncio.gather(*calls), strict=True):
        assert {result.reward for result in results} == {float(size)}


def test_a_call_takes_suspects_alone_and_last():
    call = GradeCall([("", "", "")] * 4, frozenset({1}))
    assert [list(call.take()) for _ in range(3)] == [[0, 2, 3], [1], []]


def test_a_message_of_long_rows_has_few_of_them():
    call = GradeCall([("x" * 400_000, "", "")] * 4 + [("x" * 4_000_000, "", "")] * 2, frozenset())
    assert [list(call.take()) for _ in range(4)] == [[0, 1, 2], [3, 4], [5], []]


def test_the_row_that_stopped_a_process_is_found_and_the_others_are_graded_again():
    call = GradeCall([("", "", "")] * 4, frozenset())
    taken = call.take()
    taken.popleft()  # graded
    call.stop(taken, "died")
    assert (call.stopped, call.at_once) == ({}, True)
    taken = call.take()
    assert list(taken) == [1, 2, 3]
    taken.popleft()
    call.stop(taken, "died")
    assert (call.stopped, list(call.take())) == ({2: "died"}, [3])
