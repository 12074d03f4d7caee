"""The flags in docs/engines.md that run SGLang on a CPU are those that its tests use."""

import json
import re
from pathlib import Path

from sglang_lab import ARGUMENTS, ENVIRONMENT

PAGE = (Path(__file__).parents[3] / "docs/engines.md").read_text()


def value(variable):
    return re.search(rf"export {variable}='(.*?)'$", PAGE, re.DOTALL | re.MULTILINE)[1].replace("'$PWD'", str(Path(__file__).parents[3]))


def test_the_page_has_the_flags_and_variables_of_the_tests():
    assert json.loads(value("GRADBUS_SGLANG_ARGUMENTS")) == list(ARGUMENTS)
    assert json.loads(value("GRADBUS_SGLANG_ENVIRONMENT")) == ENVIRONMENT
