"""Every exercise of every lesson: a stub is reported as unsolved, and the solution passes.

Wrong answers have files of their own, one a lesson.
"""

import ast

import build
import pytest
from checks import check, load

EXERCISES = [
    (lesson.stem, name)
    for lesson in build.sources()
    for name, answer in vars(load("solutions", lesson.stem)).items()
    if getattr(answer, "__module__", None) == f"solutions_{lesson.stem}"
]


def test_every_lesson_has_two_or_three():
    for lesson in build.sources():
        assert sum(name == lesson.stem for name, _ in EXERCISES) in (2, 3), lesson.stem


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_a_stub_is_reported_as_unsolved(lesson, exercise):
    verdict = check(lesson, exercise, lambda *arguments: None)
    assert not verdict.solved
    assert "not solved yet" in verdict.message


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_the_solution_passes(lesson, exercise):
    for _ in range(3):  # the inputs are random
        verdict = check(lesson, exercise, getattr(load("solutions", lesson), exercise))
        assert verdict.solved, verdict.message


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_an_answer_that_fails_is_reported_and_stops_nothing(lesson, exercise):
    def fails(*arguments):
        raise KeyError("missing")

    verdict = check(lesson, exercise, fails)
    assert not verdict.solved
    assert "your code raised KeyError" in verdict.message


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_the_notebook_has_the_stub_and_not_the_solution(lesson, exercise):
    source = (build.FOLDER / f"{lesson}.py").read_text()
    (stub,) = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == exercise]
    assert ast.unparse(stub.body[-1]) == "..."
