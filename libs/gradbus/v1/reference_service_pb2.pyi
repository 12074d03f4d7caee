from gradbus.v1 import group_pb2 as _group_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReferenceSequence(_message.Message):
    __slots__ = ("sample_id", "prompt_ids", "token_ids")
    SAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    sample_id: str
    prompt_ids: bytes
    token_ids: bytes
    def __init__(self, sample_id: _Optional[str] = ..., prompt_ids: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class LogProbsRequest(_message.Message):
    __slots__ = ("run_id", "temperature", "sequences", "of_teacher", "top_k", "version_files")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    OF_TEACHER_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    VERSION_FILES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    temperature: float
    sequences: _containers.RepeatedCompositeFieldContainer[ReferenceSequence]
    of_teacher: bool
    top_k: int
    version_files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., temperature: _Optional[float] = ..., sequences: _Optional[_Iterable[_Union[ReferenceSequence, _Mapping]]] = ..., of_teacher: bool = ..., top_k: _Optional[int] = ..., version_files: _Optional[_Iterable[str]] = ...) -> None: ...

class SequenceLogProbs(_message.Message):
    __slots__ = ("sample_id", "logprobs", "rows")
    SAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    sample_id: str
    logprobs: bytes
    rows: _group_pb2.TeacherRows
    def __init__(self, sample_id: _Optional[str] = ..., logprobs: _Optional[bytes] = ..., rows: _Optional[_Union[_group_pb2.TeacherRows, _Mapping]] = ...) -> None: ...

class LogProbsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SequenceLogProbs]
    def __init__(self, results: _Optional[_Iterable[_Union[SequenceLogProbs, _Mapping]]] = ...) -> None: ...
