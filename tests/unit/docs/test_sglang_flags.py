"""What the pages say of SGLang on a CPU is what its tests use and prove."""

import json
import re
from pathlib import Path

from sglang_lab import ARGUMENTS, ENVIRONMENT, SERVED

from gradbus.formats.model_families import MODEL_FAMILIES

PAGE = (Path(__file__).parents[3] / "docs/engines.md").read_text()


def value(variable):
    return re.search(rf"export {variable}='(.*?)'$", PAGE, re.DOTALL | re.MULTILINE)[1].replace("'$PWD'", str(Path(__file__).parents[3]))


def test_the_page_has_the_flags_and_variables_of_the_tests():
    assert json.loads(value("GRADBUS_SGLANG_ARGUMENTS")) == list(ARGUMENTS)
    assert json.loads(value("GRADBUS_SGLANG_ENVIRONMENT")) == ENVIRONMENT


def test_the_families_that_the_page_calls_tested_are_those_of_the_tests():
    page = (Path(__file__).parents[3] / "docs/families.md").read_text()
    named = re.search(r"It does so for (.*?)\.\n", page, re.DOTALL)[1]
    assert re.findall("`(.*?)`", named) == [MODEL_FAMILIES[family].architecture for family in SERVED]
