from gradbus.v1 import reward_pb2 as _reward_pb2
from gradbus.v1 import sample_pb2 as _sample_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_TRAIN: _ClassVar[Verdict]
    VERDICT_FILTERED: _ClassVar[Verdict]
    VERDICT_DROPPED: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERDICT_TRAIN: Verdict
VERDICT_FILTERED: Verdict
VERDICT_DROPPED: Verdict

class RoutedExperts(_message.Message):
    __slots__ = ("layers", "experts", "chosen", "prompt")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    layers: int
    experts: int
    chosen: int
    prompt: bytes
    def __init__(self, layers: _Optional[int] = ..., experts: _Optional[int] = ..., chosen: _Optional[int] = ..., prompt: _Optional[bytes] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("run_id", "index", "row", "version", "prompt_ids", "prompt_text", "samples", "worker", "engine", "traceparent", "routed_experts")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    index: int
    row: int
    version: int
    prompt_ids: bytes
    prompt_text: str
    samples: _containers.RepeatedCompositeFieldContainer[_sample_pb2.Sample]
    worker: str
    engine: str
    traceparent: str
    routed_experts: RoutedExperts
    def __init__(self, run_id: _Optional[str] = ..., index: _Optional[int] = ..., row: _Optional[int] = ..., version: _Optional[int] = ..., prompt_ids: _Optional[bytes] = ..., prompt_text: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[_sample_pb2.Sample, _Mapping]]] = ..., worker: _Optional[str] = ..., engine: _Optional[str] = ..., traceparent: _Optional[str] = ..., routed_experts: _Optional[_Union[RoutedExperts, _Mapping]] = ...) -> None: ...

class TeacherRows(_message.Message):
    __slots__ = ("ids", "logprobs")
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    logprobs: bytes
    def __init__(self, ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("index", "verdict", "reason", "group", "rewards", "reference_logprobs", "version", "traceparent", "teacher_logprobs", "teacher_rows", "behaviour_rows")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TEACHER_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEACHER_ROWS_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOUR_ROWS_FIELD_NUMBER: _ClassVar[int]
    index: int
    verdict: Verdict
    reason: str
    group: bytes
    rewards: _containers.RepeatedCompositeFieldContainer[_reward_pb2.SampleReward]
    reference_logprobs: _containers.RepeatedScalarFieldContainer[bytes]
    version: int
    traceparent: str
    teacher_logprobs: _containers.RepeatedScalarFieldContainer[bytes]
    teacher_rows: _containers.RepeatedCompositeFieldContainer[TeacherRows]
    behaviour_rows: _containers.RepeatedCompositeFieldContainer[TeacherRows]
    def __init__(self, index: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., reason: _Optional[str] = ..., group: _Optional[bytes] = ..., rewards: _Optional[_Iterable[_Union[_reward_pb2.SampleReward, _Mapping]]] = ..., reference_logprobs: _Optional[_Iterable[bytes]] = ..., version: _Optional[int] = ..., traceparent: _Optional[str] = ..., teacher_logprobs: _Optional[_Iterable[bytes]] = ..., teacher_rows: _Optional[_Iterable[_Union[TeacherRows, _Mapping]]] = ..., behaviour_rows: _Optional[_Iterable[_Union[TeacherRows, _Mapping]]] = ...) -> None: ...

class SegmentEntry(_message.Message):
    __slots__ = ("stream_id", "record")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    record: bytes
    def __init__(self, stream_id: _Optional[str] = ..., record: _Optional[bytes] = ...) -> None: ...

class LogSegment(_message.Message):
    __slots__ = ("run_id", "first", "last", "entries")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    first: str
    last: str
    entries: _containers.RepeatedCompositeFieldContainer[SegmentEntry]
    def __init__(self, run_id: _Optional[str] = ..., first: _Optional[str] = ..., last: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[SegmentEntry, _Mapping]]] = ...) -> None: ...
