from gradbus.v1 import weights_pb2 as _weights_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Broadcast(_message.Message):
    __slots__ = ("run_id", "term", "step", "broadcast_id", "shards", "config")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    term: int
    step: int
    broadcast_id: str
    shards: _containers.RepeatedCompositeFieldContainer[_weights_pb2.Shard]
    config: BroadcastConfig
    def __init__(self, run_id: _Optional[str] = ..., term: _Optional[int] = ..., step: _Optional[int] = ..., broadcast_id: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[_weights_pb2.Shard, _Mapping]]] = ..., config: _Optional[_Union[BroadcastConfig, _Mapping]] = ...) -> None: ...

class BroadcastConfig(_message.Message):
    __slots__ = ("backend", "bucket_bytes", "join_seconds", "seconds", "stall_seconds")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    backend: str
    bucket_bytes: int
    join_seconds: float
    seconds: float
    stall_seconds: float
    def __init__(self, backend: _Optional[str] = ..., bucket_bytes: _Optional[int] = ..., join_seconds: _Optional[float] = ..., seconds: _Optional[float] = ..., stall_seconds: _Optional[float] = ...) -> None: ...

class BroadcastMembership(_message.Message):
    __slots__ = ("group", "workers", "absent", "address")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    group: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    absent: _containers.RepeatedScalarFieldContainer[str]
    address: str
    def __init__(self, group: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ..., absent: _Optional[_Iterable[str]] = ..., address: _Optional[str] = ...) -> None: ...
