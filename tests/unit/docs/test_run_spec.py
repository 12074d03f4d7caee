"""docs/run-spec.md names every section, field and default of the model, and no other."""

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

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
    PreferenceSpec,
    RewardModelSpec,
    RowFilter,
    RunSpec,
    TeacherSpec,
)
from gradbus.spec.reward import graders

PAGE = (Path(__file__).parents[3] / "docs" / "run-spec.md").read_text()
GRADERS = [kind for kind in vars(graders).values() if isinstance(kind, type) and kind.__name__.endswith("Grader")]
SECTIONS = {
    name: field.annotation
    for name, field in RunSpec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
MODELS = {f"[{name}]": model for name, model in SECTIONS.items()}
MODELS |= {"[trainer.deepspeed]": DeepSpeedSpec, "[trainer.lora]": LoraSpec, "[trainer.critic]": CriticSpec, "[trainer.inner]": InnerSpec}
MODELS |= {"[algorithm.kl_control]": KlControlSpec, "[algorithm.entropy_control]": EntropyControlSpec}
MODELS |= {"[algorithm.covariance_clip]": CovarianceClipSpec}
MODELS |= {"[environment]": EnvironmentSpec, "[preference]": PreferenceSpec, "[reward.model]": RewardModelSpec, "[teacher]": TeacherSpec}
MODELS |= {"[data.mixture]": MixtureSpec, "[data.filter]": RowFilter}
OWN_TABLES = frozenset({"deepspeed", "lora", "critic", "inner", "kl_control", "entropy_control", "covariance_clip"})
MODELS |= {f"grader: {grader.model_fields['type'].annotation.__args__[0]}": grader for grader in GRADERS}


def documented() -> dict[str, dict[str, str]]:
    """Heading to (field to default), as the page's tables have them."""
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in PAGE.splitlines():
        if line.startswith("##"):
            heading = line.lstrip("# ")
        elif row := re.match(r"\| `(\w+)` \| ([^|]+) \|", line):
            found.setdefault(heading, {})[row[1]] = row[2].strip().strip("`")
    return found


def defaults(model: type[BaseModel], without: frozenset[str] = frozenset()) -> dict[str, str]:
    """Field to default, written as in the page."""
    return {name: _default(field) for name, field in model.model_fields.items() if name not in without}


def _default(field) -> str:
    if field.is_required():
        return "required"
    return "unset" if field.default is None else json.dumps(to_jsonable_python(field.default))


def test_the_page_has_a_table_for_every_section_and_grader():
    assert set(documented()) == {*MODELS, "(top level)"}


@pytest.mark.parametrize("heading", sorted(MODELS))
def test_a_table_has_the_fields_and_defaults_of_its_section(heading):
    own = OWN_TABLES | {"filter"} if heading == "[data]" else OWN_TABLES
    assert documented()[heading] == defaults(MODELS[heading], own)


def test_the_top_level_has_the_fields_that_are_no_section():
    assert documented()["(top level)"] == defaults(RunSpec, frozenset(SECTIONS))


def test_the_first_example_is_a_spec():
    import tomllib

    example = re.search(r"\n\n((?:    .+\n)+)", PAGE)[1]
    assert RunSpec.model_validate(tomllib.loads("\n".join(line[4:] for line in example.splitlines()))).schedule.steps == 200
