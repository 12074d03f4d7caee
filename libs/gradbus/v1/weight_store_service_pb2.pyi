from gradbus.v1 import broadcast_pb2 as _broadcast_pb2
from gradbus.v1 import weights_pb2 as _weights_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Heads(_message.Message):
    __slots__ = ("term", "version_step", "version_digest", "checkpoint_step", "checkpoint_digest")
    TERM_FIELD_NUMBER: _ClassVar[int]
    VERSION_STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    term: int
    version_step: int
    version_digest: str
    checkpoint_step: int
    checkpoint_digest: str
    def __init__(self, term: _Optional[int] = ..., version_step: _Optional[int] = ..., version_digest: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., checkpoint_digest: _Optional[str] = ...) -> None: ...

class OpenTermRequest(_message.Message):
    __slots__ = ("run_id", "term")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    term: int
    def __init__(self, run_id: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class OpenTermResponse(_message.Message):
    __slots__ = ("heads",)
    HEADS_FIELD_NUMBER: _ClassVar[int]
    heads: Heads
    def __init__(self, heads: _Optional[_Union[Heads, _Mapping]] = ...) -> None: ...

class PublishVersionRequest(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: _weights_pb2.WeightManifest
    def __init__(self, manifest: _Optional[_Union[_weights_pb2.WeightManifest, _Mapping]] = ...) -> None: ...

class PublishVersionResponse(_message.Message):
    __slots__ = ("diverged",)
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    diverged: bool
    def __init__(self, diverged: bool = ...) -> None: ...

class CommitCheckpointRequest(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: _weights_pb2.CheckpointManifest
    def __init__(self, manifest: _Optional[_Union[_weights_pb2.CheckpointManifest, _Mapping]] = ...) -> None: ...

class CommitCheckpointResponse(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ("run_id", "step")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    step: int
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class GetVersionResponse(_message.Message):
    __slots__ = ("manifest", "attestations")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ATTESTATIONS_FIELD_NUMBER: _ClassVar[int]
    manifest: _weights_pb2.WeightManifest
    attestations: _containers.RepeatedCompositeFieldContainer[_weights_pb2.Attestation]
    def __init__(self, manifest: _Optional[_Union[_weights_pb2.WeightManifest, _Mapping]] = ..., attestations: _Optional[_Iterable[_Union[_weights_pb2.Attestation, _Mapping]]] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("manifests", "attestations", "heads")
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    ATTESTATIONS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    manifests: _containers.RepeatedCompositeFieldContainer[_weights_pb2.WeightManifest]
    attestations: _containers.RepeatedCompositeFieldContainer[_weights_pb2.Attestation]
    heads: Heads
    def __init__(self, manifests: _Optional[_Iterable[_Union[_weights_pb2.WeightManifest, _Mapping]]] = ..., attestations: _Optional[_Iterable[_Union[_weights_pb2.Attestation, _Mapping]]] = ..., heads: _Optional[_Union[Heads, _Mapping]] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[_weights_pb2.WeightManifest]
    def __init__(self, versions: _Optional[_Iterable[_Union[_weights_pb2.WeightManifest, _Mapping]]] = ...) -> None: ...

class GetHeadsRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetHeadsResponse(_message.Message):
    __slots__ = ("heads",)
    HEADS_FIELD_NUMBER: _ClassVar[int]
    heads: Heads
    def __init__(self, heads: _Optional[_Union[Heads, _Mapping]] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("manifest", "digest")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    manifest: _weights_pb2.CheckpointManifest
    digest: str
    def __init__(self, manifest: _Optional[_Union[_weights_pb2.CheckpointManifest, _Mapping]] = ..., digest: _Optional[str] = ...) -> None: ...

class AttestRequest(_message.Message):
    __slots__ = ("attestation",)
    ATTESTATION_FIELD_NUMBER: _ClassVar[int]
    attestation: _weights_pb2.Attestation
    def __init__(self, attestation: _Optional[_Union[_weights_pb2.Attestation, _Mapping]] = ...) -> None: ...

class AttestResponse(_message.Message):
    __slots__ = ("matches",)
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    matches: bool
    def __init__(self, matches: bool = ...) -> None: ...

class OpenBroadcastRequest(_message.Message):
    __slots__ = ("broadcast", "address", "previous_group")
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_GROUP_FIELD_NUMBER: _ClassVar[int]
    broadcast: _broadcast_pb2.Broadcast
    address: str
    previous_group: str
    def __init__(self, broadcast: _Optional[_Union[_broadcast_pb2.Broadcast, _Mapping]] = ..., address: _Optional[str] = ..., previous_group: _Optional[str] = ...) -> None: ...

class OpenBroadcastResponse(_message.Message):
    __slots__ = ("membership",)
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    membership: _broadcast_pb2.BroadcastMembership
    def __init__(self, membership: _Optional[_Union[_broadcast_pb2.BroadcastMembership, _Mapping]] = ...) -> None: ...

class JoinBroadcastRequest(_message.Message):
    __slots__ = ("run_id", "broadcast_id", "worker", "previous_group")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_GROUP_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    broadcast_id: str
    worker: str
    previous_group: str
    def __init__(self, run_id: _Optional[str] = ..., broadcast_id: _Optional[str] = ..., worker: _Optional[str] = ..., previous_group: _Optional[str] = ...) -> None: ...

class JoinBroadcastResponse(_message.Message):
    __slots__ = ("membership",)
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    membership: _broadcast_pb2.BroadcastMembership
    def __init__(self, membership: _Optional[_Union[_broadcast_pb2.BroadcastMembership, _Mapping]] = ...) -> None: ...

class DeleteRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
