"""The chat template of a model folder: what it writes of messages, as text."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradbus.errors import DatasetError, ModelError, first_line
from gradbus.tokenizer.control_tokens import ControlTokens
from gradbus.tokenizer.errors import SHOWN, ModelFileError, cause_of
from gradbus.tokenizer.template_tools import TemplateTools


class ChatTemplate:
    """Renders messages and tools."""

    def __init__(self, tokenizer: Any, control: ControlTokens, begin: Callable[[], str], tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tokenizer` is transformers'. `begin` is called before the template works, and returns the name of its file. `tools` are those
        of conversations that bring none.

        Raises ModelError for tools that cannot be written into a prompt.
        """
        self._tokenizer = tokenizer
        self._control = control
        self._begin = begin
        self._tools = self.tools_of(tools)

    @property
    def exists(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return self._tokenizer.chat_template is not None

    def tools_of(self, tools: Sequence[Mapping[str, Any]]) -> TemplateTools:
        """The tools {name, description, parameters} for `rendered`. Raises ModelError for tools that cannot be written into a prompt."""
        given = [{"type": "function", "function": dict(tool)} for tool in tools]
        return TemplateTools(given, self._control.hide_tools(given))

    def are_spelled(self, messages: Sequence[Mapping[str, Any]], tools: TemplateTools | None = None) -> bool:
        """Whether the messages or the tools hold the text of a control token, so that they are to be framed."""
        return (tools or self._tools).are_spelled or self._control.are_spelled(messages)

    def rendered(
        self,
        messages: list[dict[str, Any]],
        where: str,
        *,
        framed: bool,
        generation_prompt: bool = True,
        tools: TemplateTools | None = None,
    ) -> str:
        """The text that the chat template makes of messages; with `generation_prompt` up to where the policy's answer begins.

        `framed`: with the template's control tokens under other names than those that the messages spell. `where` names the messages
        in errors. Raises DatasetError for messages that the template refuses, ModelError for a template that fails.
        """
        tools = tools or self._tools
        if not framed:
            return self._rendered(messages, where, tools.given, generation_prompt=generation_prompt)
        text = self._rendered(self._control.hide(messages, where), where, tools.hidden, generation_prompt=generation_prompt)
        if self._control.reveal(text) != self._rendered(messages, where, tools.given, generation_prompt=generation_prompt):
            raise DatasetError(
                f"the chat template looks for the text of a control token that a message of {where} has, so it writes it in another way "
                "than without that text; correct the message"
            )
        return self._control.frame(text)

    def without_tools(self, messages: list[dict[str, Any]], where: str) -> str:
        """The text up to where the policy's answer begins, of a run without tools. Raises as `rendered`."""
        return self._rendered(messages, where, [], generation_prompt=True)

    def error(self, message: str) -> ModelFileError:
        """An error of the template's file."""
        return ModelFileError(self._begin(), message)

    def _rendered(self, messages: list[dict[str, Any]], where: str, tools: Sequence[dict[str, Any]], *, generation_prompt: bool) -> str:
        from jinja2 import TemplateError  # noqa: PLC0415 - only a tokenizer's process pays for it

        if not self.exists:
            raise ModelError(
                "the data has chat messages and the tokenizer no chat template; use an instruct model or prompts of plain text"
            )
        file = self._begin()
        random.seed(where)  # of the filter `random`: a line has the same prompt in every process
        try:
            text = str(
                self._tokenizer.apply_chat_template(messages, tools=tools or None, add_generation_prompt=generation_prompt, tokenize=False)
            )
            text.encode()
        except BaseException as error:
            if type(error) is TemplateError:  # what a template's raise_exception raises
                refusal = f"the chat template refuses the messages of {where} ({first_line(error)[:SHOWN]}); correct them"
                raise DatasetError(refusal) from error
            message = f"the chat template does not render the messages of {where} ({cause_of(error)}); correct the template"
            raise ModelFileError(file, message) from error
        return text
