"""Names: which are refused, and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.names import name_mistake, name_problems


@pytest.mark.parametrize("name", ["a", "image-text", "Qwen2.5 VL", "task_1", "tâche", "图像", "😀"])
def test_a_name_that_can_be_read_is_fine(name: str) -> None:
    assert name_mistake(name) == ""
    assert name_mistake(name, part=True) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is blank"),
        (" ", "is blank"),
        ("\t\n", "is blank"),
        (" a", "begins or ends with a blank"),
        ("a ", "begins or ends with a blank"),
        ("a\x1b[31m", r"'\x1b'"),
        ("a\a", r"'\x07'"),
        ("a\0b", r"'\x00'"),
        ("a\nb", r"'\n'"),
        ("a\u202eb", r"'\u202e'"),
        ("\ud800", r"'\ud800'"),
    ],
)
def test_a_name_that_nobody_could_read_or_type_is_refused(name: str, why: str) -> None:
    assert why in name_mistake(name)
    assert name_mistake(name, part=True) == name_mistake(name)


def test_only_a_part_of_an_id_must_have_no_slash() -> None:
    assert name_mistake("t/u/b") == ""
    assert "has a slash" in name_mistake("t/u/b", part=True)


@given(st.text(max_size=6))
def test_whatever_a_name_holds_its_mistake_can_be_printed(name: str) -> None:
    (*problems,) = name_problems(name, where="task", part=True)
    assert len(problems) <= 1
    for problem in problems:
        assert problem.path == "name"
        assert problem.message.isprintable()
        assert problem.message.startswith("task: name ")
