from gradbus.v1 import reward_pb2 as _reward_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_STATUS_UNSPECIFIED: _ClassVar[CallStatus]
    CALL_STATUS_OK: _ClassVar[CallStatus]
    CALL_STATUS_MALFORMED: _ClassVar[CallStatus]
    CALL_STATUS_UNKNOWN_TOOL: _ClassVar[CallStatus]

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_ANSWERED: _ClassVar[EndReason]
    END_REASON_ENVIRONMENT_DONE: _ClassVar[EndReason]
    END_REASON_MAX_TURNS: _ClassVar[EndReason]
    END_REASON_MAX_TOKENS: _ClassVar[EndReason]
    END_REASON_CONTEXT: _ClassVar[EndReason]
    END_REASON_INVALID_CALLS: _ClassVar[EndReason]
    END_REASON_LENGTH: _ClassVar[EndReason]
    END_REASON_FAILED: _ClassVar[EndReason]
CALL_STATUS_UNSPECIFIED: CallStatus
CALL_STATUS_OK: CallStatus
CALL_STATUS_MALFORMED: CallStatus
CALL_STATUS_UNKNOWN_TOOL: CallStatus
END_REASON_UNSPECIFIED: EndReason
END_REASON_ANSWERED: EndReason
END_REASON_ENVIRONMENT_DONE: EndReason
END_REASON_MAX_TURNS: EndReason
END_REASON_MAX_TOKENS: EndReason
END_REASON_CONTEXT: EndReason
END_REASON_INVALID_CALLS: EndReason
END_REASON_LENGTH: EndReason
END_REASON_FAILED: EndReason

class Message(_message.Message):
    __slots__ = ("role", "content", "call_id", "name", "calls")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    call_id: str
    name: str
    calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., call_id: _Optional[str] = ..., name: _Optional[str] = ..., calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("call_id", "name", "arguments_json", "status")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    arguments_json: str
    status: CallStatus
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., status: _Optional[_Union[CallStatus, str]] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("start", "end", "seed", "finish", "text", "calls", "messages", "reward", "state_digest", "sequence", "stop_text", "after_turn")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    AFTER_TURN_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    seed: int
    finish: str
    text: str
    calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    reward: float
    state_digest: str
    sequence: int
    stop_text: str
    after_turn: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., seed: _Optional[int] = ..., finish: _Optional[str] = ..., text: _Optional[str] = ..., calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., reward: _Optional[float] = ..., state_digest: _Optional[str] = ..., sequence: _Optional[int] = ..., stop_text: _Optional[str] = ..., after_turn: _Optional[int] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("turns", "end_reason", "outcome", "environment_digest", "tools_digest", "attempt")
    TURNS_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOOLS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    turns: _containers.RepeatedCompositeFieldContainer[Turn]
    end_reason: EndReason
    outcome: _reward_pb2.SampleReward
    environment_digest: str
    tools_digest: str
    attempt: int
    def __init__(self, turns: _Optional[_Iterable[_Union[Turn, _Mapping]]] = ..., end_reason: _Optional[_Union[EndReason, str]] = ..., outcome: _Optional[_Union[_reward_pb2.SampleReward, _Mapping]] = ..., environment_digest: _Optional[str] = ..., tools_digest: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...
