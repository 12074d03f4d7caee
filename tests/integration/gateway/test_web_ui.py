"""The web UI as a browser gets it: hosts that are served, the content security policy, and caching."""

import gzip
import re

import httpx2
import pytest

from gradbus_gateway.web.static_files import read_static_files

FILES = read_static_files()


@pytest.mark.parametrize("path", ["/", "/sign-in"])
def test_a_document_may_run_its_own_scripts_alone(stack, path):
    answer = httpx2.get(stack.url + path, timeout=60)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert (policy["default-src"], policy["script-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    assert not re.search("unsafe|http|data:", answer.headers["content-security-policy"])
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", sorted(FILES.assets))
def test_an_asset_has_its_type_and_is_cached_for_ever(stack, name):
    answer = httpx2.get(f"{stack.url}/static/{FILES.release}/{name}", timeout=60)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == FILES.assets[name].media_type
    assert "immutable" in answer.headers["cache-control"]
    assert answer.content == FILES.assets[name].content


def test_an_asset_of_another_release_is_not_cached(stack):
    assert httpx2.get(f"{stack.url}/static/0123456789abcdef/app.js", timeout=60).headers["cache-control"] == "no-cache"


def test_an_unchanged_document_is_not_sent_again(stack):
    first = httpx2.get(stack.url, timeout=60)
    again = httpx2.get(stack.url, headers={"If-None-Match": first.headers["etag"]}, timeout=60)
    assert (first.headers["cache-control"], again.status_code, again.content) == ("no-cache", 304, b"")


def test_files_are_compressed_for_clients_that_accept_gzip(stack):
    plain = httpx2.get(stack.url, headers={"Accept-Encoding": "identity"}, timeout=60)
    with httpx2.stream("GET", stack.url, headers={"Accept-Encoding": "gzip"}, timeout=60) as packed:
        assert gzip.decompress(b"".join(packed.iter_raw())) == plain.content


OUTSIDE = ["..%2Fstatic_files.py", "lib/..%2F..%2Fstatic_files.py", "%2e%2e/%2e%2e/app.py", "/etc/passwd", "app.js%00"]


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "lib", *OUTSIDE])
def test_a_path_that_is_not_an_asset_is_not_served(stack, name):
    assert httpx2.get(f"{stack.url}/static/{FILES.release}/{name}", timeout=60).status_code == 404


@pytest.mark.parametrize("path", ["/", "/sign-in", "/openapi.json", "/v1/runs"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "localhost.evil.example:80"])
def test_a_browser_that_uses_a_foreign_host_name_is_refused(stack, path, host):
    answer = httpx2.get(stack.url + path, headers={"Host": host, "Cookie": "gradbus-session=x"}, timeout=60)
    assert answer.status_code in {400, 421}
    assert answer.status_code == 400 or "GRADBUS_SERVED_HOSTS" in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:8080", "[::1]:8080", "gradbus.test:1"])
def test_its_own_names_are_answered(stack, host):
    assert httpx2.get(stack.url, headers={"Host": host}, timeout=60).status_code == 200


def test_a_caller_with_a_key_may_use_any_name_and_so_may_a_probe(stack, http):
    assert http.get("/v1/runs", headers={"Host": "gateway:8080"}).status_code == 200
    assert httpx2.get(f"{stack.url}/readyz", headers={"Host": "10.0.0.7:8080"}, timeout=60).status_code == 200
