"""What the documents point at is there: files they link to, headings, and tests they name as proof."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(page for page in ROOT.rglob("*.md") if not any(part.startswith(".") for part in page.relative_to(ROOT).parts))
LINK = re.compile(r"\]\(([^)\s]+)\)")
PROOF = re.compile(r"`(tests/[\w/.]+)`")


def anchors(page: Path) -> set[str]:
    """Names that a heading of the page can be linked by."""
    headings = [line.lstrip("#").strip().lower() for line in page.read_text().splitlines() if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}


def test_there_are_pages():
    assert {ROOT / "README.md", ROOT / "docs" / "architecture.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    for link in LINK.findall(page.read_text()):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_named_as_proof_exists(page):
    assert [path for path in PROOF.findall(page.read_text()) if not (ROOT / path).exists()] == []


def test_a_decision_has_a_context_a_decision_and_consequences():
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        assert re.match(rf"# {page.name[:4]} ", page.read_text()), page.name
        assert re.findall(r"\*\*(\w+)\.\*\*", page.read_text()) == ["Context", "Decision", "Consequences"], page.name
        assert len(page.read_text().splitlines()) <= 60, page.name
