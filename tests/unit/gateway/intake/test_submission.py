"""A body is read, or refused with its place, before anything is made of it."""

import asyncio
import time

import pytest
from starlette.requests import Request

from gradbus.errors import SpecError
from gradbus_gateway.http.problems import ProblemError, invalid_spec
from gradbus_gateway.intake import submission
from gradbus_gateway.intake.submission import RunIntake, parse_body

JSON, TOML = "application/json", "application/toml"


@pytest.mark.parametrize(
    ("kind", "data", "path"),
    [
        (JSON, b'{"seed": 1e999}', "seed"),
        (JSON, b'{"a": [0, NaN]}', "a.1"),
        (TOML, b"seed = inf", "seed"),
        (TOML, b"[a]\nb = nan", "a.b"),
        (TOML, b"seed = 0x" + b"f" * 5000, "seed"),
        (JSON, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", "a" + ".0" * 60),
    ],
    ids=["1e999", "NaN", "inf", "nan of TOML", "hexadecimal", "deep"],
)
def test_a_value_that_could_not_be_stored_is_a_fault_with_its_path(kind, data, path):
    with pytest.raises(SpecError) as refused:
        parse_body(data, kind)
    [fault] = refused.value.faults
    assert fault.path[:100] == path[:100]
    assert invalid_spec(refused.value.faults).errors


@pytest.mark.parametrize(("data", "name"), [(b'{"name": "a", "seed": 1, "name": "b"}', "name"), (b'[{"a": {"": 1, "": 2}}]', "")])
def test_a_name_that_stands_twice_is_refused_as_in_toml(data, name):
    with pytest.raises(ProblemError) as refused:
        parse_body(data, JSON)
    assert (refused.value.status, f"an object has the name {name!r} twice; leave one of the values out" in str(refused.value)) == (
        400,
        True,
    )


def test_nan_is_called_what_it_is():
    with pytest.raises(SpecError, match=r"algorithm\.kl: has NaN, which is no number; allowed: finite numbers"):
        parse_body(b'{"algorithm": {"kl": NaN}}', JSON)


def test_a_grader_s_source_may_be_long_in_toml():
    source = "table = [" + ", ".join(f"{n}.5" for n in range(150)) + "]\n" + "a.b.c(d.e)\n" * 5000
    assert parse_body(f"source = '''\n{source}'''\n".encode(), TOML) == {"source": source}


def test_more_values_than_a_spec_has_are_one_fault():
    with pytest.raises(SpecError) as refused:
        parse_body(b'{"a": [' + b"0," * 400_000 + b"1e999]}", JSON)
    [fault] = refused.value.faults
    assert str(fault) == "(body): has more than 10000 values; allowed: the fields of a run spec"


@pytest.mark.parametrize("data", [b'{"name": "\\ud800"}', b'{"model": {"path": "a\\udfff"}}', b'{"\\ud800": 1}'])
def test_half_of_a_surrogate_pair_is_refused_with_its_place(data):
    with pytest.raises((SpecError, ProblemError)) as refused:
        parse_body(data, JSON)
    assert str(refused.value).encode()


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (JSON, b"[" * 100_000),
        (JSON, b"9" * 5000),
        (JSON, b"\xff"),
        (TOML, b"a = " + b"[" * 100_000),
        (TOML, b"a = " + b"9" * 5000),
        (TOML, b'a = "\\ud800"'),
        (TOML, b"\xff"),
        (TOML, b".".join([b"a"] * 100_000) + b" = 1"),
        (TOML, b"[" + b".".join([b"a"] * 4000) + b"]\n" + b"a = {b.c = 1}\n" * 4000),
        (TOML, b"a = 1\n" * 50_000),
    ],
    ids=[
        "deep",
        "digits",
        "bytes",
        "deep TOML",
        "digits of TOML",
        "surrogate of TOML",
        "bytes of TOML",
        "a long key",
        "a long table",
        "a long document",
    ],
)
def test_what_is_no_document_is_a_problem(kind, data):
    with pytest.raises((ProblemError, SpecError)) as refused:
        parse_body(data, kind)
    assert str(refused.value).encode()


def test_toml_without_its_content_type_is_told_to_name_it():
    with pytest.raises(ProblemError, match="Content-Type: application/toml"):
        parse_body(b'name = "by-curl"\n', "application/x-www-form-urlencoded")


@pytest.mark.parametrize("data", [b"a" + b".a" * 50_000 + b"=1", b"[a" + b".a" * 50_000 + b"]"])
def test_a_key_of_thousands_of_parts_is_refused_before_it_takes_gigabytes(data):
    with pytest.raises(ProblemError, match="dots"):
        parse_body(data, "application/toml")


def request_with(body):
    async def receive():
        return {"type": "http.request", "body": body}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_bodies_are_parsed_one_at_a_time_and_no_key_waits_for_all_of_another(monkeypatch):
    begun, running = [], []

    def parse(body, _content_type):
        begun.append(body)
        running.append(body)
        time.sleep(0.05)
        assert running == [body]
        running.remove(body)

    monkeypatch.setattr(submission, "parse_body", parse)
    intake = RunIntake(None, None, None, None, None)
    await asyncio.gather(*(intake.read(request_with(b"a"), "a") for _ in range(4)), intake.read(request_with(b"b"), "b"))
    assert begun == [b"a", b"b", b"a", b"a", b"a"]
