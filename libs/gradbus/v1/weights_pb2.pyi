from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShardDelta(_message.Message):
    __slots__ = ("base_step", "base_digest", "digest", "size_bytes")
    BASE_STEP_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    base_step: int
    base_digest: str
    digest: str
    size_bytes: int
    def __init__(self, base_step: _Optional[int] = ..., base_digest: _Optional[str] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("digest", "size_bytes", "tensors", "chain", "delta_only")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    DELTA_ONLY_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    tensors: _containers.RepeatedScalarFieldContainer[str]
    chain: _containers.RepeatedCompositeFieldContainer[ShardDelta]
    delta_only: bool
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., tensors: _Optional[_Iterable[str]] = ..., chain: _Optional[_Iterable[_Union[ShardDelta, _Mapping]]] = ..., delta_only: bool = ...) -> None: ...

class VersionProbe(_message.Message):
    __slots__ = ("token_ids", "logprobs", "base_logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BASE_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    logprobs: bytes
    base_logprobs: bytes
    def __init__(self, token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., base_logprobs: _Optional[bytes] = ...) -> None: ...

class WeightManifest(_message.Message):
    __slots__ = ("run_id", "term", "step", "digest", "shards", "noop", "probe", "traceparent")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    NOOP_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    term: int
    step: int
    digest: str
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    noop: bool
    probe: VersionProbe
    traceparent: str
    def __init__(self, run_id: _Optional[str] = ..., term: _Optional[int] = ..., step: _Optional[int] = ..., digest: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., noop: bool = ..., probe: _Optional[_Union[VersionProbe, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class DeletedVersions(_message.Message):
    __slots__ = ("run_id", "versions")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    versions: _containers.RepeatedCompositeFieldContainer[WeightManifest]
    def __init__(self, run_id: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[WeightManifest, _Mapping]]] = ...) -> None: ...

class CheckpointHead(_message.Message):
    __slots__ = ("term", "step", "digest")
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    term: int
    step: int
    digest: str
    def __init__(self, term: _Optional[int] = ..., step: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Attestation(_message.Message):
    __slots__ = ("run_id", "worker", "step", "digest")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker: str
    step: int
    digest: str
    def __init__(self, run_id: _Optional[str] = ..., worker: _Optional[str] = ..., step: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Frontier(_message.Message):
    __slots__ = ("below", "above", "chain", "extents")
    BELOW_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    below: int
    above: _containers.RepeatedScalarFieldContainer[int]
    chain: str
    extents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, below: _Optional[int] = ..., above: _Optional[_Iterable[int]] = ..., chain: _Optional[str] = ..., extents: _Optional[_Iterable[int]] = ...) -> None: ...

class TrainerProgress(_message.Message):
    __slots__ = ("run_id", "step", "frontier")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    step: int
    frontier: Frontier
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., frontier: _Optional[_Union[Frontier, _Mapping]] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("run_id", "step", "digest")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    step: int
    digest: str
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class CheckpointManifest(_message.Message):
    __slots__ = ("run_id", "term", "step", "weights", "optimizer", "frontier", "pinned", "previous", "trained", "fingerprint", "controllers", "origin")
    class TrainedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ControllersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    term: int
    step: int
    weights: WeightManifest
    optimizer: _containers.RepeatedCompositeFieldContainer[Shard]
    frontier: Frontier
    pinned: _containers.RepeatedCompositeFieldContainer[WeightManifest]
    previous: str
    trained: _containers.ScalarMap[int, str]
    fingerprint: _containers.ScalarMap[str, str]
    controllers: _containers.ScalarMap[str, float]
    origin: Origin
    def __init__(self, run_id: _Optional[str] = ..., term: _Optional[int] = ..., step: _Optional[int] = ..., weights: _Optional[_Union[WeightManifest, _Mapping]] = ..., optimizer: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., frontier: _Optional[_Union[Frontier, _Mapping]] = ..., pinned: _Optional[_Iterable[_Union[WeightManifest, _Mapping]]] = ..., previous: _Optional[str] = ..., trained: _Optional[_Mapping[int, str]] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., controllers: _Optional[_Mapping[str, float]] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ...) -> None: ...
