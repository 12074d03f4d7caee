"""Another scorer for a live run: what is stored, and what is refused with the reason."""

import pytest

from gradbus.bus import Buckets
from gradbus.client import document
from gradbus.control.scorers import ScorerChanges
from gradbus.errors import ApiError, SpecError
from gradbus.spec import MAX_CHANGES

TAGS = {"grader": {"type": "tags"}}


@pytest.fixture
def decide(bus, submitted):
    """Decides the groups of the first scorers that were asked for, as the run's conductor does."""

    async def write(*groups):
        bucket = await bus.bucket(Buckets.RUNS)
        wanted = ScorerChanges.parse((await bucket.get(f"{submitted['id']}.scorers_wanted")).value).changes
        changes = [change.model_copy(update={"from_group": group}) for change, group in zip(wanted, groups, strict=False)]
        await bucket.put(f"{submitted['id']}.scorers", ScorerChanges(changes=tuple(changes)).to_bytes())

    return write


def turns(found):
    found = found if isinstance(found, dict) else document(found)
    return [(one["from_group"], one["wanted_from_group"], (one["scorer"]["grader"] or {}).get("type")) for one in found["scorers"]]


async def test_a_scorer_is_shown_as_asked_for_until_the_run_decides_its_group(client, submitted, decide):
    run_id = submitted["id"]
    assert turns(client.reward(run_id)) == [(0, 0, "string_check")]
    client.change_reward(run_id, TAGS)
    assert turns(client.change_reward(run_id, {"service": "http://127.0.0.1:1/x", "from_group": 30})) == [
        (0, 0, "string_check"),
        (None, 0, "tags"),
        (None, 30, None),
    ]
    await decide(6)
    assert turns(client.reward(run_id)) == [(0, 0, "string_check"), (6, 0, "tags"), (None, 30, None)]


async def test_a_repeated_request_changes_nothing_and_another_one_adds_a_scorer(client, submitted):
    run_id = submitted["id"]
    for _ in range(3):
        client.change_reward(run_id, TAGS)
    assert len(client.reward(run_id).scorers) == 2
    client.change_reward(run_id, submitted["spec"]["reward"]["grader"] and {"grader": submitted["spec"]["reward"]["grader"]})
    assert turns(client.reward(run_id))[2] == (None, 0, "string_check")


async def test_toml_is_taken_as_well(http, submitted):
    answer = http.put(
        f"/v1/runs/{submitted['id']}/reward", content='[grader]\ntype = "tags"\n', headers={"Content-Type": "application/toml"}
    )
    assert (answer.status_code, turns(answer.json())[1]) == (200, (None, 0, "tags"))


@pytest.mark.parametrize(
    ("scorer", "field", "told"),
    [
        ({}, "(body)", "exactly one source"),
        (TAGS | {"service": "http://127.0.0.1:1/x"}, "(body)", "exactly one source"),
        ({"grader": {"type": "no-such"}}, "grader", "tag"),
        ({"grader": {"type": "python", "source": "def grade(:"}}, "grader.source", "syntax"),
        ({"grader": {"type": "string_check", "input": "a", "reference": "{{ item.gone }}"}}, "grader.reference", "not a column"),
        ({"service": "http://169.254.169.254/x"}, "service", ""),
        (TAGS | {"from_group": -1}, "from_group", "greater"),
        (TAGS | {"from_group": 2**31 - 1}, "from_group", "so many groups"),
        (TAGS | {"from_version": 2}, "from_version", "the run decides it"),
        (TAGS | {"timeout_seconds": 5.0}, "timeout_seconds", ""),
        (TAGS | {"shadow": {}}, "shadow", ""),
    ],
)
async def test_a_scorer_that_no_run_could_have_is_refused_by_field_and_nothing_changes(client, submitted, scorer, field, told):
    with pytest.raises(SpecError) as error:
        client.change_reward(submitted["id"], scorer)
    found = {fault.path: fault.message for fault in error.value.faults}
    assert field in found, found
    assert told in found[field]
    assert len(client.reward(submitted["id"]).scorers) == 1


@pytest.mark.parametrize("body", ["[]", "1", "nothing", '{"service": NaN}'])
async def test_a_body_that_is_no_scorer_is_refused(http, submitted, body):
    answer = http.put(f"/v1/runs/{submitted['id']}/reward", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}


async def test_a_run_that_ends_or_does_not_exist_takes_none(client, submitted, set_state):
    await set_state(submitted["id"], "succeeded")
    with pytest.raises(ApiError, match="submit a new run"):
        client.change_reward(submitted["id"], TAGS)
    with pytest.raises(ApiError, match="404"):
        client.change_reward("run-000000000000-000000", TAGS)
    with pytest.raises(ApiError, match="404"):
        client.reward("run-000000000000-000000")


async def test_a_run_takes_so_many_scorers_and_no_more(client, submitted):
    for n in range(MAX_CHANGES):
        client.change_reward(submitted["id"], TAGS | {"from_group": n})
    with pytest.raises(ApiError, match="fork it"):
        client.change_reward(submitted["id"], TAGS)


async def test_a_run_that_no_scorer_judges_and_one_of_the_operators_scorer_keep_what_they_have(
    client, spec, submitted, tmp_path, gateway_with, stack
):
    given = {"prompt": "1+1=", "completion": "2"}
    (tmp_path / "given.jsonl").write_text(str(given).replace("'", '"') + "\n")
    body = {key: value for key, value in spec.items() if key not in {"rollout", "reward"}} | {
        "kind": "sft",
        "data": {"train": "given.jsonl"},
    }
    run = client.submit(body, tmp_path)
    with pytest.raises(SpecError, match="no grader and no service"):
        client.change_reward(run.id, TAGS)
    with (
        type(client)(gateway_with(reward_service="http://127.0.0.1:1/operator"), stack.key) as other,
        pytest.raises(SpecError, match="operator"),
    ):
        other.change_reward(submitted["id"], TAGS)
