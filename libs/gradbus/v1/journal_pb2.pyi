from gradbus.v1 import environment_service_pb2 as _environment_service_pb2
from gradbus.v1 import sample_pb2 as _sample_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrawnTurn(_message.Message):
    __slots__ = ("token_ids", "logprobs", "spans", "finish", "seed")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    logprobs: bytes
    spans: _containers.RepeatedCompositeFieldContainer[_sample_pb2.Span]
    finish: str
    seed: int
    def __init__(self, token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., spans: _Optional[_Iterable[_Union[_sample_pb2.Span, _Mapping]]] = ..., finish: _Optional[str] = ..., seed: _Optional[int] = ...) -> None: ...

class JournalEntry(_message.Message):
    __slots__ = ("opened", "drawn", "answered")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    opened: _environment_service_pb2.OpenResponse
    drawn: DrawnTurn
    answered: _environment_service_pb2.StepResponse
    def __init__(self, opened: _Optional[_Union[_environment_service_pb2.OpenResponse, _Mapping]] = ..., drawn: _Optional[_Union[DrawnTurn, _Mapping]] = ..., answered: _Optional[_Union[_environment_service_pb2.StepResponse, _Mapping]] = ...) -> None: ...
