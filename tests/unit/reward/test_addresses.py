import ipaddress

import pytest

from gradbus.errors import UserCodeError
from gradbus.user_services.addresses import AddressPolicy

ANY_HOST = AddressPolicy(allowed_hosts=("*",))
EMBEDDED = AddressPolicy(allow_loopback=True)


@pytest.mark.parametrize("policy", [ANY_HOST, AddressPolicy(("*",), allow_loopback=True)])
@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "169.254.0.1", "fe80::1", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "0.0.0.0", "::",
        "224.0.0.1", "ff02::1",
        "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:0.0.0.0",
        "::169.254.169.254", "::ffff:0:169.254.169.254", "2001:0:4136:e378:8000:63bf:5601:5601", "0.0.0.1",
        "fe80::1%1", "fd00:ec2::254%1", "::ffff:169.254.169.254%1", "64:ff9b::6464:64c8",
    ],
)  # fmt: skip
def test_some_addresses_are_refused_whatever_the_operator_allows(policy, address):
    with pytest.raises(UserCodeError, match="no scorer may use"):
        policy.check("scorer", ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "::127.0.0.1"])
def test_loopback_needs_its_own_permission(address):
    EMBEDDED.check("localhost", ipaddress.ip_address(address))
    with pytest.raises(UserCodeError, match="loopback"):
        ANY_HOST.check("localhost", ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["scorer", "SCORER", "a.rewards.svc"])
def test_hosts_are_allowed_by_pattern(host):
    policy = AddressPolicy(allowed_hosts=("scorer", "*.rewards.svc"))
    policy.check(host, ipaddress.ip_address("10.0.0.7"))
    policy.check(host, ipaddress.ip_address("2606:4700::1111"))


@pytest.mark.parametrize("host", ["other", "scorer.evil.example", "rewards.svc", "10.0.0.7"])
def test_hosts_that_no_pattern_matches_are_refused(host):
    policy = AddressPolicy(allowed_hosts=("scorer", "*.rewards.svc"))
    with pytest.raises(UserCodeError, match="not allowed"):
        policy.check(host, ipaddress.ip_address("10.0.0.7"))


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]", "localhost"])
async def test_loopback_in_disguise_is_found_out(host):
    with pytest.raises(UserCodeError):
        await ANY_HOST.resolve(f"http://{host}:8000/score")


@pytest.mark.parametrize("host", ["2852039166", "0xa9fea9fe", "[::ffff:a9fe:a9fe]", "169.254.43518"])
async def test_metadata_in_disguise_is_found_out(host):
    with pytest.raises(UserCodeError):
        await ANY_HOST.resolve(f"http://{host}/latest/meta-data")


async def test_resolving_gives_addresses_to_connect_to():
    endpoint = await EMBEDDED.resolve("grpc://localhost:9000")
    assert (endpoint.host, endpoint.port) == ("localhost", 9000)
    assert all(address.is_loopback for address in endpoint.addresses)


@pytest.mark.parametrize(
    "url",
    [
        "grpc://scorer",
        "http://",
        "http://user:secret@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://[::1/",
        "http://no-such-host.invalid/",
    ],
)
async def test_what_is_no_usable_url_is_refused_without_repeating_secrets(url):
    with pytest.raises(UserCodeError) as caught:
        await EMBEDDED.resolve(url)
    assert "secret" not in str(caught.value)


async def test_ipv4_comes_first_for_most_scorers_listen_there():
    versions = [address.version for address in (await EMBEDDED.resolve("grpc://localhost:9000")).addresses]
    assert versions == sorted(versions)
