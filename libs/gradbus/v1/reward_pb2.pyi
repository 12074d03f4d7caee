from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RewardStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REWARD_STATUS_UNSPECIFIED: _ClassVar[RewardStatus]
    REWARD_STATUS_OK: _ClassVar[RewardStatus]
    REWARD_STATUS_INVALID: _ClassVar[RewardStatus]
    REWARD_STATUS_ERROR: _ClassVar[RewardStatus]
REWARD_STATUS_UNSPECIFIED: RewardStatus
REWARD_STATUS_OK: RewardStatus
REWARD_STATUS_INVALID: RewardStatus
REWARD_STATUS_ERROR: RewardStatus

class SampleReward(_message.Message):
    __slots__ = ("sample_id", "status", "reward", "components", "reason", "permanent")
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    sample_id: str
    status: RewardStatus
    reward: float
    components: _containers.ScalarMap[str, float]
    reason: str
    permanent: bool
    def __init__(self, sample_id: _Optional[str] = ..., status: _Optional[_Union[RewardStatus, str]] = ..., reward: _Optional[float] = ..., components: _Optional[_Mapping[str, float]] = ..., reason: _Optional[str] = ..., permanent: bool = ...) -> None: ...

class ScoreSample(_message.Message):
    __slots__ = ("sample_id", "group_id", "prompt", "response", "item_json", "finish_reason", "weight_version", "traceparent", "prompt_ids", "token_ids")
    SAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ITEM_JSON_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    sample_id: str
    group_id: str
    prompt: str
    response: str
    item_json: str
    finish_reason: str
    weight_version: int
    traceparent: str
    prompt_ids: bytes
    token_ids: bytes
    def __init__(self, sample_id: _Optional[str] = ..., group_id: _Optional[str] = ..., prompt: _Optional[str] = ..., response: _Optional[str] = ..., item_json: _Optional[str] = ..., finish_reason: _Optional[str] = ..., weight_version: _Optional[int] = ..., traceparent: _Optional[str] = ..., prompt_ids: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("run_id", "reward_json", "samples", "version_files")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REWARD_JSON_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FILES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    reward_json: str
    samples: _containers.RepeatedCompositeFieldContainer[ScoreSample]
    version_files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., reward_json: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[ScoreSample, _Mapping]]] = ..., version_files: _Optional[_Iterable[str]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SampleReward]
    def __init__(self, results: _Optional[_Iterable[_Union[SampleReward, _Mapping]]] = ...) -> None: ...
