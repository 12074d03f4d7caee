"""The response to a request of JSON-RPC, in a body or a stream of events, and the text of a tool's result."""

import json

import pytest

from gradbus.user_services.http import HttpResponse
from gradbus_environment.answers import AnswerError
from gradbus_environment.worlds.mcp_messages import response_to, result_text

ANSWER = {"jsonrpc": "2.0", "id": 3, "result": {}}


def response(body, kind="application/json", **headers):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpResponse(200, [("content-type", kind), *((name.replace("_", "-"), value) for name, value in headers.items())], body)


def stream(*lines):
    return response("\n".join(lines).encode(), "text/event-stream; charset=utf-8")


SPLIT = ("data: {", 'data: "id": 3,', 'data:"result": {}}')


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (response(ANSWER), ANSWER),
        (response([{"id": 2, "result": {}}, ANSWER]), ANSWER),
        (stream("event: message", f"data: {json.dumps(ANSWER)}", ""), ANSWER),
        (stream(f"data: {json.dumps(ANSWER)}"), ANSWER),
        (stream("id: 1", "data: ", "", ": ping", "", *SPLIT, ""), {"id": 3, "result": {}}),
        (stream('data: {"id": 3, "method": "ping"}', "", f"data: {json.dumps(ANSWER)}", "", "data: {", ""), ANSWER),
        (response({"id": None, "error": {"code": -32700}}), {"id": None, "error": {"code": -32700}}),
    ],
)
def test_the_response_is_found(said, found):
    assert response_to(3, said) == ("", found)


@pytest.mark.parametrize(
    "said",
    [
        response(b""),
        response(b"\xff"),
        response({"id": 4, "result": {}}),
        response({"id": 3, "method": "sampling/createMessage"}),
        response(7),
        stream("data: {", ""),
        stream(json.dumps(ANSWER), ""),
        response(ANSWER, mcp_session_id="s" * 1025),
        response(ANSWER, mcp_session_id="s\u00fc"),
    ],
)
def test_whatever_else_is_a_wrong_answer(said):
    with pytest.raises(AnswerError):
        response_to(3, said)


def test_a_session_has_the_name_that_the_server_gives():
    assert response_to(3, response(ANSWER, mcp_session_id="abc"))[0] == "abc"


TEXT = {"type": "text", "text": "it is"}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [TEXT, TEXT]}, "it is\nit is"),
        ({"content": []}, ""),
        ({"content": [], "structuredContent": {"b": 1, "a": [2]}}, '{"a":[2],"b":1}'),
        ({"content": [TEXT], "structuredContent": {"a": 1}}, "it is"),
        ({"content": [TEXT], "isError": True}, '{"error":"tool_failed","message":"it is"}'),
        ({"content": [TEXT], "isError": "yes"}, "it is"),
    ],
)
def test_the_text_of_a_result(result, text):
    assert result_text(result) == text


@pytest.mark.parametrize("result", [{}, {"content": {}}, {"content": [7]}, {"content": [{"text": "x"}]}, {"content": [{"type": 7}]}])
def test_a_result_without_text_is_a_wrong_answer(result):
    with pytest.raises(AnswerError):
        result_text(result)
