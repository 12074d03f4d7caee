"""The graders that a spec describes. Names and meaning follow OpenAI's graders, where those have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gradbus.spec.sections import ColumnName, Flag, Integer, Number, Section, Template

RESPONSE: Final = "{{ sample.output_text }}"
Pattern = Annotated[str, Field(min_length=1, max_length=4096)]
TagName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
Verdict = Annotated[Number, Field(ge=-1e6, le=1e6)]
"""What a judge may say; beyond it no reward may be."""
Script = Literal["latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "han", "hiragana", "katakana", "hangul", "thai"]


class Part(Section):
    """A grader by itself, or one of several that a formula joins."""

    @property
    def runs_users_code(self) -> bool:
        """Whether it runs code that a user or the policy wrote, which the operator must allow."""
        return False


class StringCheckGrader(Part):
    """1.0 if the comparison holds, else 0.0."""

    type: Literal["string_check"]
    input: Template
    reference: Template
    operation: Literal["eq", "ne", "like", "ilike"] = "eq"


class TextSimilarityGrader(Part):
    """Similarity in [0, 1]."""

    type: Literal["text_similarity"]
    input: Template
    reference: Template
    evaluation_metric: Literal["fuzzy_match"] = "fuzzy_match"


class MathGrader(Part):
    """1.0 if the last answer of the text and the reference are the same mathematically, else 0.0; by the library math-verify."""

    type: Literal["math"]
    input: Template = RESPONSE
    reference: Template = Field(description="LaTeX, a number, or a solution that ends in `#### answer`.")


class RegexGrader(Part):
    """1.0 if the pattern matches, and its last match's first group is the reference, if there is one; else 0.0."""

    type: Literal["regex"]
    input: Template = RESPONSE
    pattern: Pattern = Field(description="A regular expression of Python's `re`.")
    match: Literal["search", "full"] = Field("search", description="`full`: the whole text must match.")
    reference: Template | None = Field(None, description="What the first group of the last match must be, without spaces around both.")


class JsonSchemaGrader(Part):
    """1.0 if the text is JSON that keeps to the schema, else 0.0; by the library jsonschema."""

    type: Literal["json_schema"]
    input: Template = RESPONSE
    json_schema: dict[str, Any] | Template = Field(description="A JSON Schema, or a template of one, such as `{{ item.schema }}`.")
    fenced: Flag = Field(False, description="The JSON is the last fenced block of the text, if it has one.")


class CodeGrader(Part):
    """The share of hidden tests that the program in the text passes. Each test runs in a sandbox."""

    type: Literal["code"]
    input: Template = Field(RESPONSE, description="Its last fenced block is the program; without one, the whole text is.")
    tests: Template = Field("{{ item.tests }}", description="JSON: pairs of input and expected output, or with `assert` statements.")
    style: Literal["stdin", "call", "assert"] = Field(
        "stdin",
        description="`stdin`: a test is [text of the standard input, expected output]; `call`: [list of arguments, expected value] of "
        "`function`; `assert`: Python source that raises.",
    )
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")] | None = Field(
        None, description="`call`: the name of the function."
    )
    seconds: Number = Field(2.0, ge=0.1, le=60.0, description="Of one test.")
    memory_mib: Integer = Field(256, ge=64, le=4096)
    needs_all: Flag = Field(False, description="1.0 if all tests pass, else 0.0, in place of the share.")

    @property
    def runs_users_code(self) -> bool:
        """The policy's."""
        return True


class ScoreModelGrader(Part):
    """The number that a judge gives: a language model behind OpenAI's chat completions, asked with a rubric."""

    type: Literal["score_model"]
    url: Annotated[str, Field(max_length=2048, pattern=r"^https?://[!-~]+$")] = Field(
        description="Base URL of the server, such as http://127.0.0.1:8000/v1; `/chat/completions` is added."
    )
    model: Annotated[str, Field(min_length=1, max_length=400)] = Field(description="The name that the server serves.")
    input: Template = Field(description="The rubric with the response in it. It asks for a number on the last line.")
    system: Template | None = Field(None, description="The system message.")
    range: tuple[Verdict, Verdict] = Field((0.0, 1.0), description="Bounds of the number; another one is no answer.")
    temperature: Number = Field(0.0, ge=0.0, le=2.0)
    max_tokens: Integer = Field(1024, ge=1, le=131_072, description="Of one answer.")
    tries: Integer = Field(3, ge=1, le=10, description="Calls for one sample, where a call fails or gives no number.")
    max_calls: Integer | None = Field(None, ge=1, le=1 << 40, description="The run fails when this part has made so many calls.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.range[0] < self.range[1]:
            raise PydanticCustomError("range", "has no numbers between its bounds", {"expected": "[lowest, highest]"})
        return self


class LengthGrader(Part):
    """1.0 up to a length, then less by a straight line down to 0.0 (as the soft punishment of DAPO, arXiv:2503.14476, equation 13)."""

    type: Literal["length"]
    input: Template = RESPONSE
    unit: Literal["characters", "words", "lines"] = "characters"
    full: Integer = Field(ge=0, le=1 << 24, description="The length up to which it is 1.0.")
    zero: Integer = Field(ge=1, le=1 << 24, description="The length from which it is 0.0.")
    least: Integer = Field(0, ge=0, le=1 << 24, description="Shorter texts have 0.0.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.least <= self.full < self.zero:
            raise PydanticCustomError("lengths", "are not in order", {"expected": "least ≤ full < zero"})
        return self


class TagsGrader(Part):
    """The share of the tags that occur exactly once, opened and closed, in this order and not inside each other."""

    type: Literal["tags"]
    input: Template = RESPONSE
    tags: tuple[TagName, ...] = Field(("think", "answer"), min_length=1, max_length=32)


class ScriptGrader(Part):
    """The share of the letters that belong to a script: a cheap sign of the language of an answer."""

    type: Literal["script"]
    input: Template = RESPONSE
    script: Script = "latin"


Interface = Literal["gradbus", "verl", "trl", "openrlhf", "slime", "atropos", "verifiers"]
"""How a reward function is called; `gradbus_reward.sandbox.interfaces` has one call for each."""
FUNCTIONS: Final[Mapping[Interface, str]] = {
    "gradbus": "grade",
    "verl": "compute_score",
    "trl": "reward_func",
    "openrlhf": "reward_func",
    "slime": "custom_rm",
    "atropos": "reward_fn",
    "verifiers": "reward_func",
}
"""The name of the function where the spec gives none."""


class PythonGrader(Part):
    """A reward function: `grade(sample, item)`, which returns a float or a dict of floats with `reward`; or one of another framework."""

    type: Literal["python"]
    source: str | None = Field(None, max_length=131_072, description="Python source text.")
    file: str | None = Field(None, max_length=4096, description="Path of the source; the command line replaces it by the text.")
    module: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,199}:[A-Za-z_][A-Za-z0-9_.]{0,199}$")] | None = Field(
        None, description="In place of a source: `module:function` of a module that the operator has installed and named."
    )
    interface: Interface = Field("gradbus", description="The framework that the function was written for.")
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$")] | None = Field(
        None, description="With a source: its function. Default: the interface's usual name, such as `grade` or `compute_score`."
    )
    label: ColumnName = Field("answer", description="Of other interfaces: column with the reference answer.")

    @property
    def runs_users_code(self) -> bool:
        """The source; a module is the operator's."""
        return self.module is None

    @property
    def function_name(self) -> str:
        """The function of the source."""
        return self.function or FUNCTIONS[self.interface]


SimpleGrader = Annotated[
    StringCheckGrader
    | TextSimilarityGrader
    | MathGrader
    | RegexGrader
    | JsonSchemaGrader
    | CodeGrader
    | ScoreModelGrader
    | LengthGrader
    | TagsGrader
    | ScriptGrader
    | PythonGrader,
    Field(discriminator="type"),
]


class MultiGrader(Section):
    """Named graders and the formula that joins them, e.g. `0.5 * digits + 0.5 * exact`."""

    type: Literal["multi"]
    graders: dict[Annotated[str, Field(max_length=64)], SimpleGrader] = Field(min_length=1, max_length=64)
    calculate_output: str = Field(min_length=1, max_length=2000)


Grader = Annotated[SimpleGrader | MultiGrader, Field(discriminator="type")]
