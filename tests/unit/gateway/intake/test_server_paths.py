"""Only what lies under a root can be named."""

import pytest

from gradbus_gateway.intake.server_paths import allowed_paths, under_roots


@pytest.fixture
def roots(tmp_path):
    (tmp_path / "root" / "model").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "secret")
    return [tmp_path / "absent", tmp_path / "root"]


def test_relative_and_absolute_paths_under_a_root_are_found(roots):
    assert under_roots("model", roots) == roots[1] / "model"
    assert under_roots(str(roots[1] / "model"), roots) == roots[1] / "model"


@pytest.mark.parametrize("given", ["../secret", "link", "link/..", "/etc", "gone", "model/../../secret", "\0", "x" * 5000])
def test_paths_outside_the_roots_and_missing_paths_are_not_found(roots, given):
    assert under_roots(given, roots) is None


def test_without_roots_nothing_is_found_and_the_advice_says_why(tmp_path):
    assert under_roots(str(tmp_path), []) is None
    assert "GRADBUS_MODEL_ROOTS" in allowed_paths([])


def test_a_fault_names_no_folder_of_the_server(roots, tmp_path):
    assert str(tmp_path) not in allowed_paths(roots)
    assert "below a root of the server" in allowed_paths(roots)
