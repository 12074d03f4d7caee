"""The page's files: whole, small, and in need of nothing from elsewhere."""

import re
from pathlib import Path

import pytest

from gradbus_gateway.web.files import read_page_files

STATIC = Path(__file__).parents[3] / "services/gateway/gradbus_gateway/web/static"
OWN = sorted(path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".html"} and path.parent.name != "vendor")
FILES = read_page_files()
IMPORT = re.compile(r'^import .*?"\./([\w-]+\.js)";', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)


def of(path):
    return str(path.relative_to(STATIC))


@pytest.mark.parametrize("path", OWN, ids=of)
def test_no_file_is_long(path):
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("path", OWN, ids=of)
def test_no_file_names_another_origin(path):
    assert set(re.findall(r"https?://[\w.]+", path.read_text())) <= {"http://www.w3.org"}  # SVG's namespace, which is never fetched


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".html"], ids=of)
def test_a_document_has_no_script_or_style_of_its_own(path):
    text = path.read_text()
    assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", text)
    assert set(re.findall(r'(?:src|href)="/page/\{release\}/([^"]+)"', text)) <= FILES.assets.keys()


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=of)
def test_a_script_imports_what_is_there_and_builds_no_markup_from_text(path):
    text = path.read_text()
    for names, module in re.findall(r'^import \{ ([\w, ]+) \} from "\./([\w-]+\.js)";', text, re.MULTILINE):
        assert set(names.split(", ")) <= set(EXPORT.findall((STATIC / module).read_text())), module
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


def test_every_script_is_reached():
    reached, left = set(), {"app.js", "sign-in.js"}
    while left:
        reached.add(name := left.pop())
        left |= set(IMPORT.findall((STATIC / name).read_text())) - reached
    assert reached == {path.name for path in OWN if path.suffix == ".js"}


def test_all_of_it_is_small():
    assert sum(len(file.packed) for file in FILES.assets.values()) < 80_000


def test_the_chart_library_comes_with_its_licence():
    assert "MIT License" in (STATIC / "vendor" / "uplot.LICENSE.txt").read_text()


def test_a_changed_file_is_another_release(tmp_path):
    releases = []
    for script in ("1", "2"):
        for name, text in {"index.html": "/page/{release}/a.js", "sign-in.html": "", "a.js": script}.items():
            (tmp_path / name).write_text(text)
        files = read_page_files(tmp_path)
        assert files.documents["index.html"].content == f"/page/{files.release}/a.js".encode()
        releases.append(files.release)
    assert releases[0] != releases[1]
