"""Which scorers and teachers a user may name."""

import pytest

from gradbus.user_services.addresses import TEACHER
from gradbus_gateway.intake.spec.service_address import AllowedHosts, address_faults
from gradbus_gateway.settings import GatewaySettings

OPEN = AllowedHosts.of_rewards(GatewaySettings(allowed_hosts=("scorer", "*.rewards.svc", "10.0.0.7"), allow_loopback=True))
CLOSED = AllowedHosts.of_rewards(GatewaySettings())


@pytest.mark.parametrize(
    "url",
    [
        "grpc://scorer:50051",
        "http://scorer/score",
        "https://a.rewards.svc:8443/score",
        "http://SCORER:1/",
        "grpc://10.0.0.7:1",
        "http://127.0.0.1:9000/score",
        "http://localhost:9000/score",
        "grpc://[::1]:5",
    ],
)
def test_allowed_hosts_and_the_embedded_stack_s_loopback_pass(url):
    assert list(address_faults(url, OPEN, "reward.service")) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://metadata.google.internal/x",
        "http://metadata.google.internal./x",
        "http://0.0.0.0:80/",
        "http://224.0.0.1/",
        "http://100.100.100.200/",
    ],
)
def test_some_addresses_are_refused_whatever_is_allowed(url):
    faults = list(address_faults(url, AllowedHosts(("*",), allow_loopback=True), "reward.service"))
    assert [fault.path for fault in faults] == ["reward.service"]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://localhost/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://a.localhost/"]
)
def test_loopback_is_for_the_embedded_stack(url):
    assert "loopback" in str(next(address_faults(url, CLOSED, "reward.service")))


@pytest.mark.parametrize("url", ["http://example.com/", "http://rewards.svc/", "http://scorer.evil.com/"])
def test_a_host_nobody_allowed_is_refused(url):
    assert "GRADBUS_ALLOWED_HOSTS" in str(next(address_faults(url, OPEN, "reward.service")))


@pytest.mark.parametrize("url", ["http://", "grpc://scorer", "http://u:p@scorer/", "http://scorer:99999/", "http://[::1/"])
def test_what_is_no_address_is_refused(url):
    assert list(address_faults(url, OPEN, "reward.service"))


@pytest.mark.parametrize("url", ["http://", "http://u:p@teacher/", "http://teacher:99999/"])
def test_an_address_that_is_none_is_answered_with_forms_of_its_section(url):
    teachers = AllowedHosts(("*",), allow_loopback=True, named=TEACHER)
    assert {fault.allowed for fault in address_faults(url, teachers, "teacher.url")} == {"http://host:port or https://host:port"}
    assert {fault.allowed for fault in address_faults(url, OPEN, "reward.service")} == {"grpc://host:port or http://host:port/path"}


@pytest.mark.parametrize("url", ["localhost:9000", "scorer", "ftp://127.0.0.1/score"])
def test_another_scheme_which_is_a_fault_of_the_spec_is_no_second_one(url):
    assert list(address_faults(url, OPEN, "reward.service")) == []
