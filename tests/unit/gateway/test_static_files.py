"""The files of the web UI: complete, small, and independent of other origins."""

import re
from pathlib import Path

import pytest

from gradbus_gateway.web.static_files import read_static_files

STATIC = Path(__file__).parents[3] / "services/gateway/gradbus_gateway/web/static"
OWN = sorted(path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".html"} and path.parent.name != "vendor")
FILES = read_static_files()
IMPORT = re.compile(r'^import (?:\{ ([\w, ]+) \} from )?"(\.\.?/[\w./-]+\.js)";', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)


def of(path):
    return str(path.relative_to(STATIC))


def imports(path):
    """(names, file) of each module that a script imports."""
    return [(names.split(", "), (path.parent / module).resolve()) for names, module in IMPORT.findall(path.read_text())]


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
    assert set(re.findall(r'(?:src|href)="/static/\{release\}/([^"]+)"', text)) <= FILES.assets.keys()


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=of)
def test_a_script_imports_what_is_there_and_builds_no_markup_from_text(path):
    text = path.read_text()
    assert len(imports(path)) == len(re.findall(r"^import\b", text, re.MULTILINE))
    for names, module in imports(path):
        assert module.is_relative_to(STATIC)
        assert set(names) <= set(EXPORT.findall(module.read_text())), module
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


def test_every_script_is_reached():
    reached, left = set(), {STATIC / "app.js", STATIC / "sign-in.js"}
    while left:
        reached.add(script := left.pop())
        left |= {module for _, module in imports(script)} - reached
    assert reached == {path for path in OWN if path.suffix == ".js"}


def test_no_folder_has_more_than_fifteen_files():
    crowded = [folder for folder in (STATIC, *STATIC.rglob("*")) if folder.is_dir() and len(list(folder.glob("*.*"))) > 15]
    assert crowded == []


def test_all_of_it_is_small():
    assert sum(len(file.gzipped) for file in FILES.assets.values()) < 100_000


def test_the_chart_library_comes_with_its_licence():
    assert "MIT License" in (STATIC / "vendor" / "uplot.LICENSE.txt").read_text()


def test_a_changed_file_is_another_release(tmp_path):
    releases = []
    for script in ("1", "2"):
        for name, text in {"index.html": "/static/{release}/a.js", "sign-in.html": "", "a.js": script}.items():
            (tmp_path / name).write_text(text)
        files = read_static_files(tmp_path)
        assert files.documents["index.html"].content == f"/static/{files.release}/a.js".encode()
        releases.append(files.release)
    assert releases[0] != releases[1]


def luminance(colour):
    """WCAG 2.2, relative luminance of `#rrggbb`."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_lines_of_six_runs_differ_from_the_paper_and_from_each_other_in_both_themes():
    themes = re.findall(r":root \{(.*?)\}", (STATIC / "styles" / "base.css").read_text(), re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        paper = luminance(re.search(r"--paper: (#\w{6})", theme)[1])
        lines = re.findall(r"--line-\d: (#\w{6})", theme)
        assert len(set(lines)) == 6
        for line in lines:
            dark, light = sorted((luminance(line), paper))
            assert (light + 0.05) / (dark + 0.05) >= 3, line
