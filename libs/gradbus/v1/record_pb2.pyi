from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class StoredRecord(_message.Message):
    __slots__ = ("payload", "digest")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    digest: bytes
    def __init__(self, payload: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...
