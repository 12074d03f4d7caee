"""The table of permissions is complete and minimal, and docs/access.md equals it."""

from pathlib import Path

import pytest

from gradbus.access import BUFFER_USERS, CALLERS, NATS_USERS, SERVERS, buffer_rules, callers_of, nats_permissions
from gradbus.access.markdown import render_markdown
from gradbus.access.table import KEYS, METHODS, READERS, ROLE_NAMES, in_role_order
from gradbus.bus import Buckets
from gradbus.deploy.roles import ROLES
from gradbus.v1 import environment_service_pb2, reference_service_pb2, reward_service_pb2, weight_store_service_pb2

CONTRACTS = (weight_store_service_pb2, reward_service_pb2, environment_service_pb2, reference_service_pb2)
BUCKETS = {value for name, value in vars(Buckets).items() if name.isupper()}


def test_every_method_of_every_contract_has_its_callers_and_no_other_is_named():
    services = [service for contract in CONTRACTS for service in contract.DESCRIPTOR.services_by_name.values()]
    defined = {f"{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert {method for table in METHODS.values() for method in table} == defined
    assert all(callers_of(method) for method in defined)


def test_a_method_that_is_not_in_the_table_has_no_callers():
    assert callers_of("gradbus.v1.WeightStoreService/DeleteEverything") == ()


def test_every_bucket_has_writers_and_readers():
    assert {row.bucket for row in KEYS} == set(READERS) == BUCKETS


def test_a_role_has_the_rights_of_the_wires_it_uses():
    assert set(NATS_USERS) == {"supervisor", "gateway", "conductor", "rollout", "trainer", "reference", "weight_store"}
    assert set(BUFFER_USERS) == {"supervisor", "gateway", "conductor", "rollout", "trainer"}
    assert set(SERVERS) == {"weight_store", "reward", "environment", "agent", "reference"}
    assert CALLERS["environment"] == CALLERS["agent"] == ("rollout",)
    assert CALLERS["reward"] == CALLERS["reference"] == ("conductor",)


def test_a_role_that_is_not_among_the_names_is_refused_and_never_left_out():
    assert in_role_order(("trainer", "gateway"), ("gateway", "supervisor")) == ("supervisor", "gateway", "trainer")
    with pytest.raises(ValueError, match=r"unknown roles .auditor.; add them to ROLE_NAMES in gradbus\.access\.table"):
        in_role_order(("gateway",), ("auditor",))


def test_the_names_are_those_of_the_deployed_roles_and_the_supervisor():
    assert set(ROLE_NAMES) == {"supervisor", *ROLES}
    assert len(set(ROLE_NAMES)) == len(ROLE_NAMES)


@pytest.mark.parametrize("role", NATS_USERS)
def test_no_allow_list_takes_in_what_is_not_named(role):
    allowed = nats_permissions(role)
    for subject in allowed.publish:
        parts = subject.split(".")
        known = {"$JS": 4, "$KV": 3, "prompts": 2, "events": 2, "groups": 2, "versions": 2, "broadcasts": 2, "missing": 2}
        assert len(parts) >= known[parts[0]] or subject == "$JS.API.STREAM.NAMES", subject
        assert not {"*", ">"} & set(parts[: known[parts[0]] - 1]), subject
        assert not {"DELETE", "UPDATE", "RESTORE", "SNAPSHOT", "LEADER"} & set(parts) or parts[2] == "CONSUMER", subject
    assert [one for one in allowed.subscribe if one.startswith("_INBOX")] == [f"_INBOX_{role}.>"]
    assert not {">", "_INBOX.>", "$JS.>", "$KV.>"} & set(allowed.subscribe)


def test_no_inbox_lies_in_anothers():
    inboxes = {nats_permissions(role).subscribe[0].split(".")[0] for role in NATS_USERS}
    assert len(inboxes) == len(NATS_USERS)


@pytest.mark.parametrize("role", BUFFER_USERS)
def test_rules_of_the_buffer_name_commands_and_never_groups_of_them(role):
    assert not {word for word in buffer_rules(role).split() if "@" in word or word in {"~*", "allkeys", "allcommands"}}


def test_the_page_is_made_from_the_table():
    stored = (Path(__file__).parents[3] / "docs" / "access.md").read_text()
    assert stored == render_markdown(), "run: python -m gradbus.access > docs/access.md"
