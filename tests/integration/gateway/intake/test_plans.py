"""`POST /v1/plans`: the JSON of `gradbus plan --json` for a submission, and no run."""

import pytest


def test_a_plan_of_a_submission_creates_no_run(http, stored_spec):
    before = len(http.get("/v1/runs").json()["data"])
    answer = http.post("/v1/plans?gpu=l4&gpus=2&prompt_tokens=10", json=stored_spec)
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    assert plan["card"]["name"] == "l4"
    assert plan["workload"]["prompt_tokens"] == 10
    assert [tenant["name"] for tenant in plan["tenants"]] == ["trainer", "engine"]
    assert all(tenant["bytes"] == sum(part["bytes"] for part in tenant["parts"]) for tenant in plan["tenants"])
    assert "separate" in {division["placement"] for division in plan["divisions"]}
    assert len(http.get("/v1/runs").json()["data"]) == before


@pytest.mark.parametrize(("query", "status", "said"), [("gpu=h1", 400, "no card is called"), ("gpus=0", 422, ""), ("cards=2", 422, "")])
def test_a_card_that_there_is_not_is_refused(http, stored_spec, query, status, said):
    answer = http.post(f"/v1/plans?{query}", json=stored_spec)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["detail"]


def test_a_spec_with_faults_has_no_plan(http, stored_spec):
    answer = http.post("/v1/plans", json=stored_spec | {"schedule": {"steps": 0}})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "schedule.steps")


def test_a_plan_of_many_cards_is_short(http, stored_spec):
    trainer = stored_spec.get("trainer", {}) | {"backend": "deepspeed"}
    plan = http.post("/v1/plans?gpus=1024", json=stored_spec | {"trainer": trainer}).json()
    assert sum(division["placement"] == "separate" for division in plan["divisions"]) == 3


def test_adapters_beside_layers_that_the_model_does_not_have_have_no_plan(http, stored_spec):
    answer = http.post("/v1/plans", json=stored_spec | {"trainer": {"lora": {"target_modules": ["qkv_proj"]}}})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "trainer.lora.target_modules")
