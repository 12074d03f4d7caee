from gradbus.v1 import episode_pb2 as _episode_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SpanKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPAN_KIND_UNSPECIFIED: _ClassVar[SpanKind]
    SPAN_KIND_POLICY: _ClassVar[SpanKind]
    SPAN_KIND_FRAME: _ClassVar[SpanKind]
    SPAN_KIND_TOOL: _ClassVar[SpanKind]
    SPAN_KIND_USER: _ClassVar[SpanKind]
    SPAN_KIND_CLOSE: _ClassVar[SpanKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
SPAN_KIND_UNSPECIFIED: SpanKind
SPAN_KIND_POLICY: SpanKind
SPAN_KIND_FRAME: SpanKind
SPAN_KIND_TOOL: SpanKind
SPAN_KIND_USER: SpanKind
SPAN_KIND_CLOSE: SpanKind
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class Span(_message.Message):
    __slots__ = ("start", "end", "version", "trainable", "kind", "turn")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    version: int
    trainable: bool
    kind: SpanKind
    turn: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., version: _Optional[int] = ..., trainable: bool = ..., kind: _Optional[_Union[SpanKind, str]] = ..., turn: _Optional[int] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("prompt_ids", "token_ids", "logprobs", "spans")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: bytes
    token_ids: bytes
    logprobs: bytes
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, prompt_ids: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("sample_id", "n", "seed", "token_ids", "logprobs", "spans", "finish_reason", "text", "routed_experts", "undesirable", "episode", "forks")
    SAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    UNDESIRABLE_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    sample_id: str
    n: int
    seed: int
    token_ids: bytes
    logprobs: bytes
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    finish_reason: FinishReason
    text: str
    routed_experts: bytes
    undesirable: bool
    episode: _episode_pb2.Episode
    forks: _containers.RepeatedCompositeFieldContainer[Fork]
    def __init__(self, sample_id: _Optional[str] = ..., n: _Optional[int] = ..., seed: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., text: _Optional[str] = ..., routed_experts: _Optional[bytes] = ..., undesirable: bool = ..., episode: _Optional[_Union[_episode_pb2.Episode, _Mapping]] = ..., forks: _Optional[_Iterable[_Union[Fork, _Mapping]]] = ...) -> None: ...
