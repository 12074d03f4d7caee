"""Reward functions written for other frameworks: called as these call them, from a source or from an installed module."""

import pytest

from gradbus.v1 import reward_pb2

OK, INVALID, ERROR = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID, reward_pb2.REWARD_STATUS_ERROR

VERL = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
TRL = "def reward_func(prompts, completions, answer, **columns):\n"
OPENRLHF = "def reward_func(queries, prompts, labels):\n"
SLIME = "async def custom_rm(args, sample):\n"
VERIFIERS = "def reward_func(completion, answer):\n"
ATROPOS = "class reward_fn:\n    weight = 2.0\n    def compute(self, completions, **columns):\n"


@pytest.fixture
def scored(grader_scorer, ask):
    async def run(interface, source, *responses, prompts="12+0=", **more):
        item = more.pop("item", {})
        request = ask(*(responses or ("12", "13")), **item)
        for sample in request.samples:
            sample.prompt = prompts
        return await grader_scorer({"type": "python", "interface": interface, "source": source, **more}).score(request, 60.0)

    return run


@pytest.mark.parametrize(
    ("interface", "source"),
    [
        ("verl", VERL + "    return float(solution_str == ground_truth)"),
        ("verl", "async " + VERL + "    return {'score': float(solution_str == ground_truth), 'pred': solution_str}"),
        ("trl", TRL + "    return [float(given == right) for given, right in zip(completions, answer, strict=True)]"),
        ("trl", "async " + TRL + "    return [float(given == right) for given, right in zip(completions, answer)]"),
        ("openrlhf", OPENRLHF + "    return {'rewards': [float(queries[0] == prompts[0] + labels[0])]}"),
        ("openrlhf", OPENRLHF + "    return [float(queries[0] == prompts[0] + labels[0])]"),
        ("slime", SLIME + "    return float(sample.response == sample.label)"),
        ("slime", "def custom_rm(args, sample):\n    return {'score': float(sample.response == sample.label)}"),
        ("atropos", ATROPOS + "        return [0.5 * (completions[0] == columns['answer'][0])]"),
        ("verifiers", VERIFIERS + "    return float(completion == answer)"),
        ("verifiers", "async def reward_func(**given):\n    return given['state']['completion'] == given['answer']"),
    ],
)
async def test_each_interface_gives_its_reward(scored, interface, source):
    assert [(result.status, result.reward) for result in await scored(interface, source)] == [(OK, 1.0), (OK, 0.0)]


async def test_verl_finds_its_ground_truth_where_its_datasets_have_it(scored):
    source = VERL + "    return {'score': float(ground_truth == '9'), 'n': extra_info['n'], 'source': float(data_source == 'gsm')}"
    item = {"reward_model": {"ground_truth": "9"}, "extra_info": {"n": 4}, "data_source": "gsm"}
    first, _ = await scored("verl", source, item=item)
    assert (first.reward, dict(first.components)) == (1.0, {"n": 4.0, "source": 1.0})


async def test_a_label_may_be_another_column_and_a_function_have_another_name(scored):
    source = VERL.replace("compute_score", "mine") + "    return float(ground_truth == 'gold')"
    first, _ = await scored("verl", source, item={"gold": "gold"}, label="gold", function="mine")
    assert first.reward == 1.0


async def test_trl_gets_conversations_columns_and_a_log(scored):
    source = (
        "def reward_func(prompts, completions, answer, log_metric, log_extra, trainer_state, **columns):\n"
        "    log_extra('text', completions)\n    log_metric('n', len(prompts[0]))\n"
        "    return [float(completions[0][0]['content'] == '12' and completions[0][0]['role'] == 'assistant' and columns['n'] == [0])]"
    )
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    first, second = await scored("trl", source, item={"prompt": messages})
    assert (first.reward, second.reward, dict(first.components)) == (1.0, 0.0, {"n": 2.0})


async def test_a_rubric_of_verifiers_weighs_its_functions_and_gives_them_its_objects(scored):
    source = (
        "class Rubric:\n    weights = [1.0, 0.5, 0.0]\n    class_objects = {'parser': str.strip}\n"
        "    def right(completion, answer, parser):\n        return float(parser(completion[-1]['content']) == answer)\n"
        "    def short(completion, info):\n        return float(len(completion[0]['content']) < info['most'])\n"
        "    def turns(prompt, task, state):\n        return len(prompt) if task == state['task'] == 'default' else 0\n"
        "    funcs = [right, short, turns]\nreward_func = Rubric"
    )
    item = {"prompt": [{"role": "user", "content": "u"}], "info": {"most": 3}, "answer": "12"}
    first, second = await scored("verifiers", source, " 12 ", "13", item=item)
    assert (first.reward, dict(first.components)) == (1.0, {"right": 1.0, "short": 0.0, "turns": 1.0})
    assert (second.reward, dict(second.components)) == (0.5, {"right": 0.0, "short": 1.0, "turns": 1.0})


async def test_functions_of_a_rubric_that_share_a_name_are_components_of_their_own(scored):
    source = "class Rubric:\n    weights = [1.0, 0.5]\n    funcs = [lambda answer: 2, lambda answer: 4]\nreward_func = Rubric"
    first, _ = await scored("verifiers", source)
    assert (first.reward, dict(first.components)) == (4.0, {"<lambda>": 2.0, "<lambda> 2": 4.0})


async def test_openrlhf_logs_are_components(scored):
    source = OPENRLHF + "    return {'rewards': [2.0], 'scores': [0.5], 'extra_logs': {'a': [3], 'text': ['x']}}"
    first, _ = await scored("openrlhf", source)
    assert (first.reward, dict(first.components)) == (2.0, {"scores": 0.5, "a": 3.0})


@pytest.mark.parametrize(
    ("interface", "source", "components"),
    [
        ("verl", VERL + "    return {'score': 1.0, 'reward': 0.25, 'n': 2}", {"n": 2.0}),
        ("verl", VERL + "    return {'reward': 1.0, 'n': 2}", {"n": 2.0}),
        ("slime", SLIME + "    return {'score': 1.0, 'reward': 0.25}", {}),
        ("openrlhf", OPENRLHF + "    return {'rewards': [1.0], 'extra_logs': {'reward': [0.25], 'b': [3]}}", {"b": 3.0}),
    ],
)
async def test_what_else_is_called_reward_is_not_it(scored, interface, source, components):
    first, _ = await scored(interface, source)
    assert (first.status, first.reward, dict(first.components)) == (OK, 1.0, components)


async def test_of_trls_log_what_no_component_may_be_is_left_out(scored):
    logs = "log_metric('nan', float('nan')); log_metric('far', 1e31); [log_metric(n, n) for n in range(70)]; log_metric(0, 7)"
    source = f"def reward_func(prompts, completions, log_metric, **columns):\n    {logs}\n    return [0.5]"
    first, _ = await scored("trl", source)
    assert (first.status, first.reward, first.reason) == (OK, 0.5, "")
    assert dict(first.components) == {str(n): float(n or 7) for n in range(63)}


@pytest.mark.parametrize(
    ("interface", "source", "reason"),
    [
        ("trl", TRL + "    return [None]", "no reward (None)"),
        ("trl", TRL + "    return [1.0, 2.0]", "2 values for one sample"),
        ("trl", TRL + "    return [float('nan')]", "not a finite number"),
        ("trl", "def reward_func(completion_ids, **columns):\n    return [1.0]", "completion_ids"),
        ("verl", VERL + "    return {'acc': 1.0}", "a dict without 'reward'"),
        ("verl", VERL + "    raise ValueError('own fault')", "own fault (line 2 of the grader)"),
        ("slime", "import asyncio\n" + SLIME + "    await asyncio.sleep(1)", "no running event loop"),
        ("slime", SLIME + "    await Waits()\nclass Waits:\n    def __await__(self):\n        yield", "serve it as a reward service"),
        ("atropos", ATROPOS + "        raise ValueError('own fault')", "own fault"),
        ("verifiers", VERIFIERS + "    raise ValueError('own fault')", "own fault"),
        ("verifiers", "def reward_func(completions):\n    return [1.0]", "missing 1 required positional argument: 'completions'"),
    ],
)
async def test_what_is_no_reward_is_invalid_and_never_zero(scored, interface, source, reason):
    for result in await scored(interface, source):
        assert (result.status, reason in result.reason) == (INVALID, True), result.reason


async def test_a_source_without_its_function_names_it(scored):
    first, _ = await scored("verl", TRL + "    return [1.0]")
    assert (first.status, first.permanent) == (ERROR, True)
    assert "defines no function compute_score" in first.reason


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(
        "import math_verify\n" + TRL + "    return [float(given == right) for given, right in zip(completions, answer)]\n"
        "class nested:\n    @staticmethod\n    def reads(completions, **columns):\n        return [len(open('/etc/hostname').read())]\n"
    )
    (tmp_path / "broken_rewards.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, **more: {"type": "python", "interface": "trl", "module": name, **more}


async def test_a_function_of_an_installed_module_is_confined_too(grader_scorer, ask, module):
    allowed = {"modules": ("own_rewards",), "python_graders": False}
    results = await grader_scorer(module("own_rewards:reward_func"), **allowed).score(ask("12", "13"), 60.0)
    assert [(result.status, result.reward) for result in results] == [(OK, 1.0), (OK, 0.0)]
    (result,) = await grader_scorer(module("own_rewards:nested.reads"), **allowed).score(ask("12"), 60.0)
    assert (result.status, "PermissionError" in result.reason or "FileNotFoundError" in result.reason) == (INVALID, True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own_rewards:nothing", "has no nothing"),
        ("broken_rewards:f", "No module named 'nowhere_to_be_found'"),
        ("os:system", "names no module os in GRADBUS_REWARD_MODULES; known: broken_rewards, own_rewards"),
    ],
)
async def test_a_module_that_cannot_be_used_says_why(grader_scorer, ask, module, name, reason):
    (result,) = await grader_scorer(module(name), modules=("own_rewards", "broken_rewards")).score(ask("12"), 60.0)
    assert (result.status, result.permanent) == (ERROR, True)
    assert reason in result.reason


async def test_trls_own_functions_are_one_line(grader_scorer, ask):
    request = ask("<think>\nso\n</think>\n12", "12", prompt=[{"role": "user", "content": "7+5="}])
    scorer = grader_scorer({"type": "python", "interface": "trl", "module": "trl.rewards:think_format_reward"}, modules=("trl.rewards",))
    assert [(result.status, result.reward) for result in await scorer.score(request, 60.0)] == [(OK, 1.0), (OK, 0.0)]
