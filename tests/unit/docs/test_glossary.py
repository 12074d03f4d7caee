"""docs/glossary.md names every field of the run spec once, and every term once."""

import re
from collections import Counter
from pathlib import Path

from pydantic import BaseModel

from gradbus.spec import (
    CovarianceClipSpec,
    CriticSpec,
    DeepSpeedSpec,
    EntropyControlSpec,
    EnvironmentSpec,
    InnerSpec,
    KlControlSpec,
    LoraSpec,
    MixtureSpec,
    RewardModelSpec,
    RowFilter,
    RunSpec,
    TeacherSpec,
)

PAGE = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text()
TERMS, FIELDS = PAGE.split("## Fields of the run spec")
SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in RunSpec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


def fields_of_the_spec() -> set[str]:
    """Dotted paths, a section's own sections taken apart."""
    top = {name for name in RunSpec.model_fields if name not in SECTIONS}
    within = {f"{section}.{name}" for section, model in SECTIONS.items() for name in model.model_fields}
    nested = {"trainer.deepspeed": DeepSpeedSpec, "trainer.lora": LoraSpec, "trainer.critic": CriticSpec, "trainer.inner": InnerSpec}
    nested |= {
        "algorithm.kl_control": KlControlSpec,
        "algorithm.entropy_control": EntropyControlSpec,
        "algorithm.covariance_clip": CovarianceClipSpec,
    }
    nested |= {"environment": EnvironmentSpec, "reward.model": RewardModelSpec, "teacher": TeacherSpec}
    nested |= {"data.mixture": MixtureSpec, "data.filter": RowFilter}
    return top | (within - nested.keys()) | {f"{path}.{name}" for path, model in nested.items() for name in model.model_fields}


def first_cells(text: str) -> list[str]:
    """The first cell of each row of the text's tables, headings left out."""
    cells = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    return [cell for cell in cells if cell not in ("here", "field")]


def test_every_field_of_the_run_spec_is_in_the_table_and_no_other():
    assert sorted(cell.strip("`") for cell in first_cells(FIELDS)) == sorted(fields_of_the_spec())


def test_every_term_is_explained_once():
    assert [term for term, count in Counter(first_cells(TERMS)).items() if count > 1] == []


def test_a_row_has_as_many_cells_as_its_heading():
    lines = PAGE.splitlines()
    wrong, columns = [], 0
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("|") and not before.startswith("|"):
            columns = line.count("|")
        if line.startswith("|") and line.count("|") != columns:
            wrong.append(line)
    assert wrong == []
