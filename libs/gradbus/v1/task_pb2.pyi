from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_KIND_UNSPECIFIED: _ClassVar[TaskKind]
    TASK_KIND_TRAIN: _ClassVar[TaskKind]
    TASK_KIND_EVALUATION: _ClassVar[TaskKind]
TASK_KIND_UNSPECIFIED: TaskKind
TASK_KIND_TRAIN: TaskKind
TASK_KIND_EVALUATION: TaskKind

class GroupTask(_message.Message):
    __slots__ = ("index", "row", "traceparent")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    index: int
    row: int
    traceparent: str
    def __init__(self, index: _Optional[int] = ..., row: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "run_id", "kind", "version", "groups")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    run_id: str
    kind: TaskKind
    version: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupTask]
    def __init__(self, task_id: _Optional[str] = ..., run_id: _Optional[str] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., version: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupTask, _Mapping]]] = ...) -> None: ...

class GroupsSampled(_message.Message):
    __slots__ = ("run_id", "kind", "version", "indexes", "worker")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    kind: TaskKind
    version: int
    indexes: _containers.RepeatedScalarFieldContainer[int]
    worker: str
    def __init__(self, run_id: _Optional[str] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., version: _Optional[int] = ..., indexes: _Optional[_Iterable[int]] = ..., worker: _Optional[str] = ...) -> None: ...
