"""The page's scripts, run by node over a document of text."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[4] / "services/gateway/gradbus_gateway/web/static"
NODE = shutil.which("node")

DOCUMENT = """
class Part {
  classList = { toggle() {}, add() {}, remove() {}, contains: () => false };
  style = {};
  constructor(tag) { Object.assign(this, { tag, parts: [], dataset: {}, attributes: {} }); }
  append(...parts) { this.parts.push(...parts); }
  replaceChildren(...parts) { this.parts = parts; }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener() {}
  querySelector() { return this; }
  get textContent() { return this.parts.map((part) => part.textContent ?? part).join(" ").replace(/ +/g, " ").trim(); }
  set textContent(text) { this.parts = [text]; }
}
globalThis.document = { createElement: (tag) => new Part(tag) };
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Runs `body` with the exports of some modules as `page` and with `given`; returns what it returns."""
    if NODE is None:
        pytest.skip("no `node` on the PATH")
    folder = tmp_path_factory.mktemp("page") / "static"
    shutil.copytree(STATIC, folder)
    (folder / "package.json").write_text('{"type": "module"}')

    def run(modules, body, *given):
        imports = "".join(f"...await import({json.dumps(str(folder / module))}), " for module in modules.split())
        source = f"{DOCUMENT}\nconst page = {{ {imports} }}, given = {json.dumps(given)};\n"
        source += f"console.log(JSON.stringify(await (async () => {{ {body} }})()));"
        command = [NODE, "--input-type=module", "--eval", source]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    return run
