from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_LEVEL_UNSPECIFIED: _ClassVar[EventLevel]
    EVENT_LEVEL_INFO: _ClassVar[EventLevel]
    EVENT_LEVEL_WARNING: _ClassVar[EventLevel]
    EVENT_LEVEL_ERROR: _ClassVar[EventLevel]
EVENT_LEVEL_UNSPECIFIED: EventLevel
EVENT_LEVEL_INFO: EventLevel
EVENT_LEVEL_WARNING: EventLevel
EVENT_LEVEL_ERROR: EventLevel

class RunEvent(_message.Message):
    __slots__ = ("run_id", "type", "level", "message", "data_json", "created_unix_ns")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    type: str
    level: EventLevel
    message: str
    data_json: str
    created_unix_ns: int
    def __init__(self, run_id: _Optional[str] = ..., type: _Optional[str] = ..., level: _Optional[_Union[EventLevel, str]] = ..., message: _Optional[str] = ..., data_json: _Optional[str] = ..., created_unix_ns: _Optional[int] = ...) -> None: ...
