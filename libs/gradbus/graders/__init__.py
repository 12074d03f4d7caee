"""Judging samples: the arithmetic of the built-in graders. Serving a scorer of your own: `gradbus.graders.serve`."""

from gradbus.graders.check import check_grader
from gradbus.graders.formula import Formula
from gradbus.graders.result import Result
from gradbus.graders.simple import Judge, compiled_grader, string_check, text_similarity
from gradbus.graders.template import Template

__all__ = ["Formula", "Judge", "Result", "Template", "check_grader", "compiled_grader", "string_check", "text_similarity"]
