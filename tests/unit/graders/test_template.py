import pytest

from gradbus.errors import GraderError
from gradbus.graders import InvalidSampleError, Template
from gradbus.graders.template import MAX_RENDERED_CHARACTERS

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


def test_a_text_up_to_the_bound_is_rendered_and_a_longer_one_refused():
    quarter = {"answer": "x" * (MAX_RENDERED_CHARACTERS // 4)}
    assert len(Template("{{ item.answer }}" * 4).render(SAMPLE, quarter)) == MAX_RENDERED_CHARACTERS
    with pytest.raises(InvalidSampleError, match="use each long column once"):
        Template("{{ item.answer }}" * 4 + "!").render(SAMPLE, quarter)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", ["x" * 1_000_000, ["x" * 1000] * 1000, {"a": list(range(150_000))}])
def test_thousands_of_names_of_a_long_column_take_neither_memory_nor_time(value):
    with pytest.raises(InvalidSampleError):
        Template("{{ item.answer }}" * 3800).render(SAMPLE, {"answer": value})


def test_names_lists_what_the_template_needs():
    assert Template("{{ item.a.b }} {{ sample.output_text }}").names == [("item", "a", "b"), ("sample", "output_text")]
