"""Every exercise of every lesson: a stub is reported as unsolved, and the solution passes.

Wrong answers have files of their own, one a lesson.
"""

import ast
import sys
from types import SimpleNamespace

import build
import numpy as np
import pytest
from solutions import solutions

from pmapdp_lessons.checks import check

EXERCISES = [(lesson.stem, name) for lesson in build.sources() for name in solutions(lesson.stem)]
QUICK = ("03", "06", "09")  # as in test_lessons.py


def test_every_lesson_has_two_to_four():
    for lesson in build.sources():
        assert sum(name == lesson.stem for name, _ in EXERCISES) in (2, 3, 4), lesson.stem


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_a_stub_is_reported_as_unsolved(lesson, exercise):
    verdict = check(lesson, exercise, lambda *arguments: None)
    assert not verdict.solved
    assert "not solved yet" in verdict.message


@pytest.mark.parametrize(
    ("lesson", "exercise"),
    [pytest.param(*each, marks=[] if each[0][:2] in QUICK else pytest.mark.slow) for each in EXERCISES],
)
def test_the_solution_passes(lesson, exercise):
    for _ in range(3):  # the inputs are random
        verdict = check(lesson, exercise, solutions(lesson)[exercise])
        assert verdict.solved, verdict.message


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_an_answer_that_fails_is_reported_and_stops_nothing(lesson, exercise):
    def fails(*arguments):
        raise KeyError("missing")

    verdict = check(lesson, exercise, fails)
    assert not verdict.solved
    assert "your code raised KeyError" in verdict.message
    assert 'raise KeyError("missing")' in verdict.message


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_the_notebook_has_the_stub_and_not_the_solution(lesson, exercise):
    source = (build.FOLDER / f"{lesson}.py").read_text()
    (stub,) = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == exercise]
    assert ast.unparse(stub.body[-1]) == "..."


@pytest.mark.slow
@pytest.mark.parametrize(("lesson", "exercise"), [each for each in EXERCISES if each[1].startswith("mended_")])
def test_the_planted_mistake_is_no_answer(lesson, exercise):
    broken = exercise.replace("mended", "broken")
    nodes = [
        node
        for node in ast.parse((build.FOLDER / f"{lesson}.py").read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", None) == broken
    ]
    names: dict = {}
    exec(compile(ast.Module(nodes, []), "a notebook", "exec"), names)
    assert not check(lesson, exercise, names[broken]).solved


def deep_inside_numpy(probabilities, labels):
    return np.concatenate([probabilities, labels])


def test_an_error_in_a_library_is_shown_at_the_readers_line():
    verdict = check("01_train_a_network_in_numpy", "softmax_gradient", deep_inside_numpy)
    assert "your code raised ValueError" in verdict.message
    assert "return np.concatenate([probabilities, labels])" in verdict.message


def lesson_with(monkeypatch, check_of_exercise: str) -> None:
    """Lesson 99 gets one check, `exercise`, whose code is in no file: the answers' file is this one."""
    checks_of_lesson = SimpleNamespace(exercise=eval(compile(check_of_exercise, "a check", "eval")))
    monkeypatch.setitem(sys.modules, "pmapdp_lessons.lesson_checks.lesson_99", checks_of_lesson)


def test_an_error_after_the_answer_returned_names_what_it_returned(monkeypatch):
    lesson_with(monkeypatch, "lambda answer: answer().shape")
    verdict = check("99", "exercise", lambda: [1, 2])
    assert not verdict.solved
    assert "a value of type list" in verdict.message
    assert "your code raised" not in verdict.message


def test_an_error_of_the_check_is_the_checks(monkeypatch):
    lesson_with(monkeypatch, "lambda answer: 1 / 0")
    verdict = check("99", "exercise", lambda: 1)
    assert "the check itself failed, which is no mistake of yours: ZeroDivisionError" in verdict.message
