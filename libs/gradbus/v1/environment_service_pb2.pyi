from gradbus.v1 import episode_pb2 as _episode_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Determinism(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DETERMINISM_UNSPECIFIED: _ClassVar[Determinism]
    DETERMINISM_SEEDED: _ClassVar[Determinism]
    DETERMINISM_NONE: _ClassVar[Determinism]
    DETERMINISM_RECORDED: _ClassVar[Determinism]

class EnvironmentStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENVIRONMENT_STATUS_UNSPECIFIED: _ClassVar[EnvironmentStatus]
    ENVIRONMENT_STATUS_OK: _ClassVar[EnvironmentStatus]
    ENVIRONMENT_STATUS_INVALID: _ClassVar[EnvironmentStatus]
    ENVIRONMENT_STATUS_ERROR: _ClassVar[EnvironmentStatus]
    ENVIRONMENT_STATUS_UNKNOWN_SESSION: _ClassVar[EnvironmentStatus]
DETERMINISM_UNSPECIFIED: Determinism
DETERMINISM_SEEDED: Determinism
DETERMINISM_NONE: Determinism
DETERMINISM_RECORDED: Determinism
ENVIRONMENT_STATUS_UNSPECIFIED: EnvironmentStatus
ENVIRONMENT_STATUS_OK: EnvironmentStatus
ENVIRONMENT_STATUS_INVALID: EnvironmentStatus
ENVIRONMENT_STATUS_ERROR: EnvironmentStatus
ENVIRONMENT_STATUS_UNKNOWN_SESSION: EnvironmentStatus

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("run_id", "environment_json")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    environment_json: str
    def __init__(self, run_id: _Optional[str] = ..., environment_json: _Optional[str] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("name", "digest", "determinism", "tools", "tools_by_conversation", "sandbox")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DETERMINISM_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_BY_CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    determinism: Determinism
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tools_by_conversation: bool
    sandbox: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., determinism: _Optional[_Union[Determinism, str]] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tools_by_conversation: bool = ..., sandbox: _Optional[str] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("run_id", "environment_json", "episode_id", "attempt", "item_json", "seed", "traceparent", "player", "worker", "resume")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ITEM_JSON_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    environment_json: str
    episode_id: str
    attempt: int
    item_json: str
    seed: int
    traceparent: str
    player: str
    worker: str
    resume: bool
    def __init__(self, run_id: _Optional[str] = ..., environment_json: _Optional[str] = ..., episode_id: _Optional[str] = ..., attempt: _Optional[int] = ..., item_json: _Optional[str] = ..., seed: _Optional[int] = ..., traceparent: _Optional[str] = ..., player: _Optional[str] = ..., worker: _Optional[str] = ..., resume: bool = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("messages", "tools_json", "untrained")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    UNTRAINED_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_episode_pb2.Message]
    tools_json: str
    untrained: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[_episode_pb2.Message, _Mapping]]] = ..., tools_json: _Optional[str] = ..., untrained: bool = ...) -> None: ...

class OpenResponse(_message.Message):
    __slots__ = ("status", "reason", "session", "messages", "state_digest", "is_away", "conversation", "max_new_tokens", "is_queued", "stop")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    IS_AWAY_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    status: EnvironmentStatus
    reason: str
    session: str
    messages: _containers.RepeatedCompositeFieldContainer[_episode_pb2.Message]
    state_digest: str
    is_away: bool
    conversation: Conversation
    max_new_tokens: int
    is_queued: bool
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[EnvironmentStatus, str]] = ..., reason: _Optional[str] = ..., session: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_episode_pb2.Message, _Mapping]]] = ..., state_digest: _Optional[str] = ..., is_away: bool = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., is_queued: bool = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class DrawnTokens(_message.Message):
    __slots__ = ("prompt_tokens", "token_ids", "logprobs", "version_first", "version_last")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIRST_FIELD_NUMBER: _ClassVar[int]
    VERSION_LAST_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    token_ids: bytes
    logprobs: bytes
    version_first: int
    version_last: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., version_first: _Optional[int] = ..., version_last: _Optional[int] = ...) -> None: ...

class AssistantTurn(_message.Message):
    __slots__ = ("text", "calls", "finish", "drawn", "stop_text")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    calls: _containers.RepeatedCompositeFieldContainer[_episode_pb2.ToolCall]
    finish: str
    drawn: DrawnTokens
    stop_text: str
    def __init__(self, text: _Optional[str] = ..., calls: _Optional[_Iterable[_Union[_episode_pb2.ToolCall, _Mapping]]] = ..., finish: _Optional[str] = ..., drawn: _Optional[_Union[DrawnTokens, _Mapping]] = ..., stop_text: _Optional[str] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("run_id", "session", "turn", "assistant", "is_last", "end_reason", "refused", "untrained", "is_untrained", "withdrawn")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    ASSISTANT_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    UNTRAINED_FIELD_NUMBER: _ClassVar[int]
    IS_UNTRAINED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    session: str
    turn: int
    assistant: AssistantTurn
    is_last: bool
    end_reason: str
    refused: int
    untrained: int
    is_untrained: bool
    withdrawn: int
    def __init__(self, run_id: _Optional[str] = ..., session: _Optional[str] = ..., turn: _Optional[int] = ..., assistant: _Optional[_Union[AssistantTurn, _Mapping]] = ..., is_last: bool = ..., end_reason: _Optional[str] = ..., refused: _Optional[int] = ..., untrained: _Optional[int] = ..., is_untrained: bool = ..., withdrawn: _Optional[int] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("status", "reason", "messages", "reward", "components", "done", "state_digest", "is_away", "after_turn", "conversation", "max_new_tokens", "stop")
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    IS_AWAY_FIELD_NUMBER: _ClassVar[int]
    AFTER_TURN_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    status: EnvironmentStatus
    reason: str
    messages: _containers.RepeatedCompositeFieldContainer[_episode_pb2.Message]
    reward: float
    components: _containers.ScalarMap[str, float]
    done: bool
    state_digest: str
    is_away: bool
    after_turn: int
    conversation: Conversation
    max_new_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[_Union[EnvironmentStatus, str]] = ..., reason: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_episode_pb2.Message, _Mapping]]] = ..., reward: _Optional[float] = ..., components: _Optional[_Mapping[str, float]] = ..., done: bool = ..., state_digest: _Optional[str] = ..., is_away: bool = ..., after_turn: _Optional[int] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("run_id", "session")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    session: str
    def __init__(self, run_id: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskedDraw(_message.Message):
    __slots__ = ("session", "ordinal")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    session: str
    ordinal: int
    def __init__(self, session: _Optional[str] = ..., ordinal: _Optional[int] = ...) -> None: ...

class KeepAliveRequest(_message.Message):
    __slots__ = ("worker", "known_draws")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DRAWS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    known_draws: _containers.RepeatedCompositeFieldContainer[AskedDraw]
    def __init__(self, worker: _Optional[str] = ..., known_draws: _Optional[_Iterable[_Union[AskedDraw, _Mapping]]] = ...) -> None: ...

class KeepAliveResponse(_message.Message):
    __slots__ = ("withdrawn", "withdrawn_draws")
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_DRAWS_FIELD_NUMBER: _ClassVar[int]
    withdrawn: _containers.RepeatedScalarFieldContainer[str]
    withdrawn_draws: _containers.RepeatedCompositeFieldContainer[AskedDraw]
    def __init__(self, withdrawn: _Optional[_Iterable[str]] = ..., withdrawn_draws: _Optional[_Iterable[_Union[AskedDraw, _Mapping]]] = ...) -> None: ...
