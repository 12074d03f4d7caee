"""What is committed is what the code says."""

from pathlib import Path

import pytest

from gradbus_gateway.documents import documents

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", sorted(documents(DOCS)))
def test_committed_documents_are_up_to_date(name):
    assert (DOCS / name).read_text() == documents(DOCS)[name], "run `python -m gradbus_gateway.documents docs`"
