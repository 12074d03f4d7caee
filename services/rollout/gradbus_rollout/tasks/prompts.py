"""Prompts to tokens, and responses to text. Tokenised once, here: every other service works on the ids (R11)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import TemplateError
from transformers import AutoTokenizer

from gradbus.errors import DatasetError, ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.jsonl import numbered

_KINDS = "a prompt is a text, or a list of {role, content} messages; correct the dataset's prompt column"
_CHECKED_ROWS = 10_000
_KEPT_ROWS = 10_000
"""Bounds the ids in memory: they take ten times the room of their text, so a whole dataset's might not fit."""


class PromptEncoder:
    """The tokenizer of a model folder, and a run's limits on prompts."""

    def __init__(self, folder: Path, max_new_tokens: int, max_prompt_tokens: int | None = None, extra_stop_ids: Iterable[int] = ()) -> None:
        """Raises ModelError when the folder has no tokenizer that works, or its context is shorter than the response."""
        info = check_model_folder(folder)
        room = info.context_length - max_new_tokens
        if room < 1:
            raise ModelError(f"max_new_tokens = {max_new_tokens} fills the model's context of {info.context_length}; lower max_new_tokens")
        self.max_prompt_tokens = room if max_prompt_tokens is None else min(room, max_prompt_tokens)
        self._vocab_size = info.vocab_size
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"the tokenizer in {folder} cannot be loaded ({error}); save it again with `save_pretrained`") from error
        fast = self._tokenizer.is_fast and not self._tokenizer.clean_up_tokenization_spaces
        self._backend = self._tokenizer.backend_tokenizer if fast else None
        self.stop_token_ids = frozenset(_stop_ids(folder)) | frozenset(extra_stop_ids) | _as_ids(self._tokenizer.eos_token_id)

    def encode(self, prompt: object, line: int) -> tuple[int, ...]:
        """Token ids `[P]` of a prompt: plain text by the tokenizer, messages by the chat template.

        Raises DatasetError (naming `line`) for a prompt of another kind, empty or too long, ModelError without a template.
        """
        ids = tuple(self._text_ids(prompt) if isinstance(prompt, str) else self._chat_ids(prompt, line))
        if not ids:
            raise DatasetError(f"line {line} has an empty prompt; remove the line")
        if len(ids) > self.max_prompt_tokens:
            raise DatasetError(
                f"the prompt of line {line} has {len(ids)} tokens, at most {self.max_prompt_tokens} fit; shorten it or lower max_new_tokens"
            )
        if max(ids) >= self._vocab_size:
            raise ModelError(f"the tokenizer gives id {max(ids)}, the model has {self._vocab_size}; use the model's own tokenizer")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a response's ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of many responses; with a fast tokenizer in one call, which saves transformers' cost per text."""
        if self._backend is None:
            return [self.decode(ids) for ids in sequences]
        texts: list[str] = self._backend.decode_batch(list(sequences), skip_special_tokens=True)
        return texts

    def _text_ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def _chat_ids(self, prompt: object, line: int) -> list[int]:
        messages = _messages(prompt, line)
        if self._tokenizer.chat_template is None:
            raise ModelError(
                "the data has chat messages and the tokenizer no chat template; use an instruct model or prompts of plain text"
            )
        try:
            text = str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except TemplateError as error:
            raise DatasetError(f"the chat template refuses the messages of line {line} ({error}); correct the line") from error
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]  # the template wrote the special tokens
        return ids


class PromptTable:
    """The rows of a prompts object. Encodes the first rows at once, so that a prompt which the model cannot take fails early."""

    def __init__(self, encoder: PromptEncoder, content: bytes) -> None:
        """Raises DatasetError, naming the line, for a prompt that is empty or too long."""
        self._encoder = encoder
        self._lines, self._prompts = zip(*((line, row["prompt"]) for line, row in numbered(content)), strict=True)
        self.ids = lru_cache(_KEPT_ROWS)(self._encoded)
        """Token ids `[P]` of a row's prompt, cached."""
        for row in range(min(_CHECKED_ROWS, len(self._prompts))):
            self.ids(row)

    def _encoded(self, row: int) -> tuple[int, ...]:
        return self._encoder.encode(self._prompts[row], self._lines[row])

    def text(self, row: int) -> str:
        """The prompt as text, for the scorer; of chat messages, the text that the template made."""
        prompt = self._prompts[row]
        return prompt if isinstance(prompt, str) else self._encoder.decode(self.ids(row))

    def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """Texts of responses, from their ids."""
        return self._encoder.decode_all(responses)


def _messages(prompt: object, line: int) -> list[dict[str, str]]:
    if not isinstance(prompt, Sequence) or not prompt:
        raise DatasetError(f"line {line}: {_KINDS}")
    for message in prompt:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise DatasetError(f"line {line}: {_KINDS}")
    return [dict(message) for message in prompt]


def _stop_ids(folder: Path) -> set[int]:
    """End tokens in config.json and generation_config.json."""
    stops: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            stops |= _as_ids(json.loads((folder / name).read_bytes()).get("eos_token_id"))
    return stops


def _as_ids(value: object) -> frozenset[int]:
    """Ids in an `eos_token_id`, which is absent, a number or a list."""
    if isinstance(value, int):
        return frozenset({value})
    return frozenset(value) if isinstance(value, list) else frozenset()
