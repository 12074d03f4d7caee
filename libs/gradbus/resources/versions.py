"""Policy versions, and a version exported as a model folder."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class VersionResource(BaseModel):
    """A published policy version and the workers that have loaded it."""

    object: Literal["version"] = "version"
    version: int
    term: int
    digest: str
    noop: bool
    bytes: int
    whole: bool = Field(description="Whether it is stored whole, and not only as a delta; only such a version can be exported.")
    held_by: list[str] = Field(description="The workers that have loaded and attested it, also those that hold a newer one by now.")


class ExportFile(BaseModel):
    """One file of an exported model."""

    name: str
    id: str = Field(description="Digest of the file; download it by GET /v1/files/{id}.")
    bytes: int | None = None


class ExportMerge(BaseModel):
    """Adapters to merge into `files`."""

    adapters: ExportFile
    scale: float = Field(description="A merged weight is W + scale · B A, in float32.")


class ExportResource(BaseModel):
    """A policy version as a folder in Hugging Face layout."""

    object: Literal["export"] = "export"
    run_id: str
    version: int
    final: bool = Field(description="Whether the run has ended and this is its last version.")
    digest: str
    files: list[ExportFile]
    merge: ExportMerge | None = Field(None, description="Set if `files` holds the base model's weights; `gradbus export` merges them.")
