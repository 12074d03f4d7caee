"""Loads transformers' tokenizer from a model's folder, and tells which of its files is at fault. Runs in a tokenizer's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gradbus.formats.hf_model import CONFIG
from gradbus.tokenizer.errors import ModelFileError, cause_of

TOKENIZER: Final = "tokenizer.json"


def load_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer. Raises ModelFileError with the file that is at fault."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - the fork server has imported it without torch

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        _leave_nothing_to_chance(tokenizer)
        return tokenizer
    except BaseException as error:
        if _is_read(folder / TOKENIZER):
            _refuse_config(folder)
        raise ModelFileError(
            TOKENIZER, f"the tokenizer cannot be loaded ({cause_of(error)}); save it again with `save_pretrained`"
        ) from error


def _is_read(file: Path) -> bool:
    from tokenizers import Tokenizer  # noqa: PLC0415 - transformers has imported it

    try:
        Tokenizer.from_file(str(file))
    except BaseException:  # noqa: BLE001 - the library raises bare exceptions and panics
        return False
    return True


def _refuse_config(folder: Path) -> None:
    """Raises ModelFileError if it is the model's configuration that transformers does not take: it says what class the tokenizer has."""
    from transformers import AutoConfig  # noqa: PLC0415 - the fork server has imported it without torch

    try:
        AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except BaseException as error:
        raise ModelFileError(CONFIG, f"transformers does not take it ({cause_of(error)}); correct the field") from error


def _leave_nothing_to_chance(tokenizer: Any) -> None:
    """Turns off the dropout of a BPE model, with which a text has other tokens each time: a line has the same prompt in every process."""
    if tokenizer.is_fast and hasattr(model := tokenizer.backend_tokenizer.model, "dropout"):
        model.dropout = None
