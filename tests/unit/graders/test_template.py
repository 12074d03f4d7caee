import pytest

from gradbus.errors import GraderError
from gradbus.graders import Template

SAMPLE = {"output_text": "12", "finish_reason": "stop"}
ITEM = {"answer": "12", "n": 3, "ok": True, "x": {"y": [1.5, {"z": "deep"}]}, "none": None, "first name": "a"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{{ sample.output_text }}", "12"),
        ("{{sample.finish_reason}}!", "stop!"),
        ("<{{ item.answer }}|{{ item.n }}>", "<12|3>"),
        ("{{ item.x.y.1.z }}", "deep"),
        ("{{ item.x.y.0 }}", "1.5"),
        ("{{ item.ok }} {{ item.none }}", "true null"),
        ("{{ item.x }}", '{"y": [1.5, {"z": "deep"}]}'),
        ("a } b }} c { d", "a } b }} c { d"),
    ],
)
def test_names_are_replaced_and_all_else_stands(text, expected):
    assert Template(text).render(SAMPLE, ITEM) == expected


def test_values_are_never_read_as_templates_again():
    assert Template("{{ sample.output_text }}").render({"output_text": "{{ item.answer }}"}, ITEM) == "{{ item.answer }}"


@pytest.mark.parametrize(
    "text",
    [
        "{{ answer }}",
        "{{ item }}",
        "{{ item.x() }}",
        "{{ item.a | upper }}",
        "{{ }}",
        "{{ sample.logprobs }}",
        "{{ env.HOME }}",
        "{{ item.a",
    ],
)
def test_what_is_no_name_is_refused_when_the_template_is_made(text):
    with pytest.raises(GraderError, match="template"):
        Template(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["{{" * 500_000, "{{ " * 300_000 + "}}", "{{" + "a" * 900_000 + "}}", "{{ item." + "a." * 300_000 + " }}"])
def test_a_template_made_to_take_hours_is_refused_at_once_and_shown_in_part(text):
    with pytest.raises(GraderError) as caught:
        Template(text)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "name", ["item.absent", "item.x.absent", "item.x.y.2", "item.answer.0", "item.n.bit_length", "item.none.x", "item.x.y." + "9" * 5000]
)
def test_a_name_the_row_lacks_is_an_error_that_shows_the_template(name):
    with pytest.raises(GraderError, match=f"no '{name}'"):
        Template(f"{{{{ {name} }}}}").render(SAMPLE, ITEM)


def test_names_lists_what_the_template_needs():
    assert Template("{{ item.a.b }} {{ sample.output_text }}").names == [("item", "a", "b"), ("sample", "output_text")]
