"""The examples of the page on clients, and the notebook, on a real stack."""

import ast
import asyncio
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def spec_file(spec, tmp_path):
    """A run of one step, as a file."""
    body = spec(schedule={"steps": 1})
    lines = [f"{name} = {json.dumps(value)}" for name, value in body.items() if not isinstance(value, dict)]
    for section, fields in body.items():
        if isinstance(fields, dict):
            lines += [f"{name} = {json.dumps(value)}" for name, value in flat(section, fields)]
    (tmp_path / "spec.toml").write_text("\n".join(lines))
    return tmp_path / "spec.toml"


def flat(path, fields):
    """Dotted names of TOML, and their values."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from flat(f"{path}.{name}", value)
        else:
            yield f"{path}.{name}", value


@pytest.fixture
def of_the_stack(stack_state, monkeypatch):
    """What discovers a client finds the stack of the tests."""
    monkeypatch.setenv("GRADBUS_STATE", str(stack_state))


def test_the_examples_of_the_page_train_and_wait(lab, of_the_stack, spec_file, tmp_path, capsys):
    blocking, awaiting = re.findall(r"```python\n(.*?)```", (ROOT / "docs/client.md").read_text(), re.DOTALL)
    names = {}
    exec(blocking, names)
    names["train"](spec_file, tmp_path / "trained")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("step 0: reward ")
    assert len(shown) > 1, "the step's samples follow"
    assert (tmp_path / "trained/model.safetensors").is_file()
    exec(awaiting, names)
    assert asyncio.run(names["states"](spec_file, spec_file)) == ["succeeded"] * 2


def test_the_notebook_runs_and_holds_no_outputs(lab, of_the_stack, spec_file, monkeypatch, capsys):
    cells = [cell for cell in json.loads((ROOT / "examples/client.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    monkeypatch.setenv("SPEC", str(spec_file))
    names = {}
    for cell in cells:
        waiting = eval(compile("".join(cell["source"]), "client.ipynb", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if waiting is not None:
            asyncio.run(waiting)
    assert "in the first step" in capsys.readouterr().out
    assert names["versions"][-1] == 1
