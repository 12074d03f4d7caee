"""The page's view of a plan, run by node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[3] / "services/gateway/gradbus_gateway/web/static"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no `node` on the PATH")
DOCUMENT = """
class Part {
  constructor() { Object.assign(this, { parts: [] }); }
  append(...parts) { this.parts.push(...parts); }
  setAttribute() {}
  get textContent() { return this.parts.map((part) => part.textContent ?? part).join(" ").replace(/ +/g, " ").trim(); }
}
globalThis.document = { createElement: () => new Part() };
"""
PLAN = {
    "card": {"name": "l4", "memory": 22 << 30, "count": 2, "cores": 0},
    "model": {"architecture": "Qwen2ForCausalLM", "parameters": 5, "trained": 5},
    "tenants": [
        {
            "name": "trainer",
            "bytes": 3 << 30,
            "parts": [{"name": "weights", "bytes": 1 << 30}, {"name": "moments", "bytes": 2 << 30}],
        }
    ],
    "divisions": [
        {
            "placement": "timed",
            "trainers": 1,
            "rollouts": 1,
            "fits": True,
            "rooms": [{"tenants": ["trainer"], "needed": 5, "available": 9}],
            "seconds": {"step": 90, "generate": 60, "train": 20},
        },
        {
            "placement": "shared",
            "trainers": 1,
            "rollouts": 1,
            "fits": False,
            "rooms": [{"tenants": ["trainer"], "needed": 3 << 30, "available": 1 << 30}],
            "seconds": {"step": 9, "generate": 6, "train": 2},
        },
    ],
    "changes": [{"setting": "[trainer.lora]", "tenant": "trainer", "bytes": 1 << 20}],
}


@pytest.fixture
def script(tmp_path):
    """Runs `body` with the exports of a module as `page` and with `given`; returns what it returns."""
    shutil.copytree(STATIC, tmp_path / "static")
    (tmp_path / "static/package.json").write_text('{"type": "module"}')

    def run(module, body, given=None):
        page = json.dumps(str(tmp_path / "static" / module))
        source = f"{DOCUMENT}\nconst page = await import({page}), given = {json.dumps(given)};\n"
        source += f"console.log(JSON.stringify(await (async () => {{ {body} }})()));"
        command = [NODE, "--input-type=module", "--eval", source]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    return run


def test_a_plan_is_tables(script):
    text = script("plan/plan_tables.js", "return page.planTables(given).map((part) => part.textContent);", PLAN)
    assert text[0] == "Qwen2ForCausalLM, 2 cards of 22.0 GiB: l4"
    assert text[1] == "Memory of the trainer: 3.0 GiB Part Memory weights 1.0 GiB moments 2.0 GiB"
    assert "One card, in turns 1 1 1 min 30 s 1 min 20 s" in text[2]
    assert "does not fit: 2.0 GiB too much" in text[2]
    assert text[3].endswith("[trainer.lora] trainer 1.0 MiB")


def test_a_spec_is_sent_as_what_it_is_and_faults_are_listed(script):
    body = """
      const sent = [];
      globalThis.fetch = async (path, options) => {
        sent.push([path, options.method, options.headers["Content-Type"]]);
        const problem = { detail: "no", errors: [{ path: "a.b", message: "is bad" }] };
        return { ok: false, status: 422, headers: new Map(), json: async () => problem };
      };
      const found = [];
      for (const text of ['{"name": "x"}', 'name = "x"']) {
        found.push(...(await page.answered(text, "l4", 2)).map((part) => part.textContent));
      }
      return { sent, found };
    """
    answer = script("plan/plan_view.js", body)
    types = ["application/json", "application/toml"]
    assert answer["sent"] == [["/v1/plans?gpu=l4&gpus=2", "POST", kind] for kind in types]
    assert answer["found"] == ["no a.b is bad"] * 2
