"""The size budgets, held by reading the code: small files, small functions, flat inheritance, no vague modules."""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ("libs", "kernels", "services")
FOLDERS = (*SHIPPED, "examples", "benchmarks", "tests", "loadtests")
GENERATED = ROOT / "libs/gradbus/v1"

MAX_FILE_LINES = 500
MAX_MEDIAN_LINES = 150
MAX_FILES_IN_FOLDER = 15
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
MAX_FIELDS = 15
MAX_DEPTH = 2
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc"}
CONFIGURATION = re.compile(r"(Settings|Spec|Config|Grader|Section)$")
# Python's own spelling of code or objects made from data.
UNSAFE_NAMES = {"eval", "exec"}
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def sources(*folders: str) -> list[Path]:
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if GENERATED not in path.parents]


def shown(path: Path, node: ast.AST | None = None) -> str:
    place = path.relative_to(ROOT)
    return f"{place}:{node.lineno}" if isinstance(node, (ast.expr, ast.stmt, ast.excepthandler)) else str(place)


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sources(*FOLDERS):
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield path, node


def classes(*folders: str) -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in sources(*folders):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                yield path, node


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_file_is_too_long():
    assert [shown(path) for path in sources(*FOLDERS) if line_count(path) > MAX_FILE_LINES] == []


def test_the_median_file_is_short():
    assert statistics.median(line_count(path) for path in sources(*SHIPPED)) <= MAX_MEDIAN_LINES


def test_no_function_is_too_long():
    long = [f"{shown(path, node)} {node.name}" for path, node in functions() if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES]
    assert long == []


def test_no_folder_has_too_many_files():
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".js"})
    sizes = Counter(path.parent for path in found if path.name != "__init__.py" and path.parent != GENERATED)
    assert {shown(folder): size for folder, size in sizes.items() if size > MAX_FILES_IN_FOLDER} == {}


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = node.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return "triton.jit" in {ast.unparse(decorator) for decorator in node.decorator_list}


def test_no_function_takes_too_many_parameters():
    # A test asks for fixtures by its parameters, so tests are left out. What Triton compiles takes no objects, only pointers and numbers.
    wide = [
        f"{shown(path, node)} {node.name}"
        for path, node in functions()
        if len(parameters(node)) > MAX_PARAMETERS and ROOT / "tests" not in path.parents and not is_kernel(node)
    ]
    assert wide == []


def test_no_configuration_class_has_too_many_fields():
    wide = [
        f"{shown(path, node)} {node.name}"
        for path, node in classes(*SHIPPED)
        if CONFIGURATION.search(node.name) and sum(isinstance(line, ast.AnnAssign) for line in node.body) > MAX_FIELDS
    ]
    assert wide == []


def base_name(base: ast.expr) -> str:
    match base:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return base_name(value)
    return ""


def test_inheritance_is_flat():
    bases = {node.name: [base_name(base) for base in node.bases] for _, node in classes(*SHIPPED)}

    def depth(name: str) -> int:
        """Ancestors within the project, in the longest line."""
        return 1 + max((depth(base) for base in bases[name] if base != name), default=0) if name in bases else 0

    assert [name for name in bases if depth(name) - 1 > MAX_DEPTH] == []


def test_no_module_has_a_vague_name():
    assert [shown(path) for path in sources(*FOLDERS) if VAGUE & {path.stem, path.parent.name}] == []


def is_broad(handler: ast.ExceptHandler) -> bool:
    if isinstance(handler.body[-1], ast.Raise):
        return False  # nothing is swallowed
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"} for kind in kinds)


def broad_excepts(path: Path) -> Iterator[ast.ExceptHandler]:
    return (node for node in ast.walk(parsed(path)) if isinstance(node, ast.ExceptHandler) and is_broad(node))


def says_why(path: Path, handler: ast.ExceptHandler) -> bool:
    return re.search(r"# noqa: BLE001 -+ \S+", path.read_text().splitlines()[handler.lineno - 1]) is not None


def test_a_broad_except_says_why():
    assert [shown(path, node) for path in sources(*FOLDERS) for node in broad_excepts(path) if not says_why(path, node)] == []


def unsafe_calls(module: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in UNSAFE_NAMES:
                yield node
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save")):
                yield node
            case ast.Import(names=names) if any(name.name.split(".")[0] in UNSAFE_MODULES for name in names):
                yield node
            case ast.ImportFrom(module=str(source)) if source.split(".")[0] in UNSAFE_MODULES:
                yield node


def test_shipped_code_neither_unpickles_nor_evaluates_text():
    # Users' graders and environments are compiled in processes of their own, without environment, network or the service's memory.
    allowed = {path for path in sources("services/reward", "services/environment") if path.match("sandbox/child.py")}
    found = [shown(path, node) for path in sources(*SHIPPED) if path not in allowed for node in unsafe_calls(parsed(path))]
    assert found == []


@pytest.mark.parametrize("text", ["eval('1')", "exec('1')", "import pickle", "from dill import loads", "torch.load('x')"])
def test_the_search_for_unsafe_calls_finds_them(text):
    assert list(unsafe_calls(ast.parse(text)))
