"""Graders that compute in proportion to their texts, and so in the service's own process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from gradbus.graders.shaping import length, script, tags
from gradbus.graders.template import Template
from gradbus.graders.text_comparison import string_check, text_similarity
from gradbus.spec import LengthGrader, ScriptGrader, StringCheckGrader, TagsGrader, TextSimilarityGrader

GradeFunction = Callable[[Mapping[str, object], Mapping[str, object]], float]
"""From (sample, item) to a reward in [0, 1]. Raises GraderError."""
QuickGrader = StringCheckGrader | TextSimilarityGrader | LengthGrader | TagsGrader | ScriptGrader
QUICK_GRADERS: Final[tuple[type[Any], ...]] = get_args(QuickGrader)


def compiled_grader(grader: QuickGrader) -> GradeFunction:
    """The grader with its templates parsed. Raises GraderError if a template is not well formed."""
    text = Template(grader.input)
    match grader:
        case StringCheckGrader(operation=operation):
            reference = Template(grader.reference)
            return lambda sample, item: string_check(operation, text.render(sample, item), reference.render(sample, item))
        case TextSimilarityGrader():
            reference = Template(grader.reference)
            return lambda sample, item: text_similarity(text.render(sample, item), reference.render(sample, item))
        case LengthGrader():
            return lambda sample, item: length(text.render(sample, item), grader)
        case TagsGrader(tags=names):
            return lambda sample, item: tags(text.render(sample, item), names)
        case ScriptGrader(script=name):
            return lambda sample, item: script(text.render(sample, item), name)
