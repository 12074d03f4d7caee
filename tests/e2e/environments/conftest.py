"""Specs of runs whose samples are episodes."""

import pytest

SYSTEM = {"role": "system", "content": "Say words."}


@pytest.fixture
def episodes(spec, rows, tokenizer):
    """A run on chat prompts without a scorer; its template ends a turn by a line break, and its policy by any of many tokens."""
    line_break = tokenizer.encode("\n", add_special_tokens=False)[-1]

    def make(**changes):
        prompts = [{"prompt": [SYSTEM, {"role": "user", "content": word}], "word": word} for word in ("sun", "moon", "star", "sky")]
        stops = sorted({line_break, *range(2, len(tokenizer), 2)})
        body = spec(name="episodes", data={"train": rows(prompts)}, rollout={"stop_token_ids": stops}, **changes)
        body.pop("reward")
        body.pop("evaluation", None)
        return body

    return make
