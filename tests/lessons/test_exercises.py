"""Every check accepts every right answer, and says what is wrong with any other.

The answers are data, one file a lesson, `answers/lesson_NN.py`:

    WRONG = {EXERCISE: [(WORDS, OLD, NEW, ...), ...]}    the message holds WORDS
    RIGHT = {EXERCISE: [(OLD, NEW, ...), ...]}           beside the solution

An answer is the solution with OLD replaced by NEW, or a function. To try the answers to
an exercise: `pytest tests/lessons/test_exercises.py -n 0 -m "" -k "lesson_04 and
fixed_accuracy"`.
"""

import ast
import inspect
import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import build
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from solutions import solutions

from pmapdp.lessons.checks import check

SOLUTIONS = {lesson.stem: solutions(lesson.stem) for lesson in build.sources()}
EXERCISES = [
    (lesson, exercise)
    for lesson, functions in SOLUTIONS.items()
    for exercise in functions
]
ANSWERS = {  # WRONG and RIGHT of each lesson
    lesson: runpy.run_path(
        str(Path(__file__).parent / "answers" / f"lesson_{lesson[:2]}.py")
    )
    for lesson in SOLUTIONS
}
QUICK = ("05", "09")  # plain `pytest` tries their solutions
# Plain `pytest` tries all other answers of the lessons before this one. From here on,
# the first of an exercise is slow, and the others are left for the night.
FIRST_SLOW = "06"
FEWEST_WRONG = 5  # answers to an exercise
FEWEST_RIGHT = 2  # beside the solution


def edited(lesson: str, exercise: str, replacements: Sequence[str]):
    """The solution of an exercise as a function, with its text edited."""
    text = (build.FOLDER / "solutions" / f"{lesson}.py").read_text()
    (node,) = [
        node for node in ast.parse(text).body if getattr(node, "name", "") == exercise
    ]
    function = ast.get_source_segment(text, node)
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert old in function
        function = function.replace(old, new)
    names = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "optax": optax}
    exec(compile(text, "solutions", "exec"), names)
    exec(compile(function, "an edited solution", "exec"), names)
    return names[exercise]


def cases(kind: str) -> list:
    """A test case (lesson, exercise, entry of the table) for each answer of a kind."""
    found = []
    for lesson, tables in ANSWERS.items():
        for exercise, answers in tables[kind].items():
            for number, answer in enumerate(answers):
                if lesson[:2] < FIRST_SLOW:
                    marks = []
                elif number == 0:
                    marks = [pytest.mark.slow]
                else:
                    marks = [pytest.mark.nightly]
                name = f"lesson_{lesson[:2]}-{exercise}-{number}"
                found.append(
                    pytest.param(lesson, exercise, answer, id=name, marks=marks)
                )
    return found


@pytest.mark.parametrize(("lesson", "exercise", "answer"), cases("WRONG"))
def test_a_wrong_answer_gets_the_message_that_helps(lesson, exercise, answer):
    words, *given = answer
    verdict = check(
        lesson,
        exercise,
        given[0] if callable(given[0]) else edited(lesson, exercise, given),
    )
    assert not verdict.solved
    assert words in verdict.message


@pytest.mark.parametrize(("lesson", "exercise", "answer"), cases("RIGHT"))
def test_an_unusual_right_answer_passes(lesson, exercise, answer):
    verdict = check(
        lesson,
        exercise,
        answer if callable(answer) else edited(lesson, exercise, answer),
    )
    assert verdict.solved, verdict.message


@pytest.mark.parametrize(
    ("lesson", "exercise"),
    [
        pytest.param(*each, marks=[] if each[0][:2] in QUICK else pytest.mark.slow)
        for each in EXERCISES
    ],
)
def test_the_solution_passes(lesson, exercise):
    verdict = check(lesson, exercise, SOLUTIONS[lesson][exercise])
    assert verdict.solved, verdict.message


@pytest.mark.slow
def test_a_step_without_the_check_is_accepted_with_a_remark():
    """Lesson 10."""
    lesson = "10_three_ways_side_by_side"
    unchecked = ("**specs)", "**specs, check_vma=False)")
    without_cast = ("(local, x, y)", "(params, x, y)")
    verdict = check(
        lesson, "make_step", edited(lesson, "make_step", without_cast + unchecked)
    )
    assert verdict.solved
    assert "keep check_vma on" in verdict.message
    verdict = check(lesson, "make_step", SOLUTIONS[lesson]["make_step"])
    assert verdict.message == "make_step: right"


@pytest.mark.parametrize("lesson", SOLUTIONS)
def test_every_lesson_has_two_to_four_and_the_tables_name_no_other(lesson):
    assert len(SOLUTIONS[lesson]) in (2, 3, 4)
    assert ANSWERS[lesson]["WRONG"].keys() == SOLUTIONS[lesson].keys()
    assert ANSWERS[lesson]["RIGHT"].keys() <= SOLUTIONS[lesson].keys()


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_every_check_has_met_many_answers(lesson, exercise):
    assert len(ANSWERS[lesson]["WRONG"][exercise]) >= FEWEST_WRONG
    assert len(ANSWERS[lesson]["RIGHT"][exercise]) >= FEWEST_RIGHT


@pytest.mark.parametrize("lesson", SOLUTIONS)
def test_a_check_throws_no_dice(lesson):
    """The answers are tried once here, so every learner's must meet the same cases."""
    checks = import_module(f"pmapdp.lessons.lesson_checks.lesson_{lesson[:2]}")
    assert "default_rng()" not in inspect.getsource(checks)


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_stubs_and_errors_are_reported_and_stop_nothing(lesson, exercise):
    """And the notebook has the stub, not the solution."""

    def fails(*arguments):
        raise KeyError("missing")

    unsolved, failed = (
        check(lesson, exercise, lambda *arguments: None),
        check(lesson, exercise, fails),
    )
    assert not unsolved.solved
    assert "not solved yet" in unsolved.message
    assert not failed.solved
    assert "your code raised KeyError" in failed.message
    assert 'raise KeyError("missing")' in failed.message
    source = (build.FOLDER / f"{lesson}.py").read_text()
    (stub,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == exercise
    ]
    assert ast.unparse(stub.body[-1]) == "..."


def planted_mistake(lesson: str, exercise: str):
    """The function `broken_NAME` of a lesson that `fixed_NAME` corrects, or None."""
    broken = f"broken_{exercise.partition('_')[2]}"
    body = ast.parse((build.FOLDER / f"{lesson}.py").read_text()).body
    kept = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    kept += [
        node
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name == broken
    ]
    names: dict = {}
    exec(compile(ast.Module(kept, []), "a notebook", "exec"), names)
    return names.get(broken)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", SOLUTIONS)
def test_the_planted_mistake_is_no_answer(lesson):
    mistakes = {
        exercise: planted_mistake(lesson, exercise) for exercise in SOLUTIONS[lesson]
    }
    planted = {exercise: mistake for exercise, mistake in mistakes.items() if mistake}
    assert planted, "at least one exercise is to find a mistake"
    for exercise, mistake in planted.items():
        assert not check(lesson, exercise, mistake).solved


def deep_inside_numpy(x, g):
    return np.concatenate([x, g[0]])


def test_an_error_in_a_library_is_shown_at_the_readers_line():
    verdict = check(
        "01_train_a_network_in_numpy", "standardize_backward", deep_inside_numpy
    )
    assert "your code raised ValueError" in verdict.message
    assert "return np.concatenate([x, g[0]])" in verdict.message


@pytest.mark.parametrize(
    ("check_of_exercise", "words"),
    [
        ("lambda answer: answer().shape", "a value of type list"),
        ("lambda answer: 1 / 0", "the check itself failed"),
    ],
)
def test_an_error_of_the_check_is_not_said_to_be_yours(
    monkeypatch, check_of_exercise, words
):
    """Lesson 99 gets one check. Its code is in no file, the answer in this one."""
    checks_of_lesson = SimpleNamespace(
        exercise=eval(compile(check_of_exercise, "a check", "eval"))
    )
    monkeypatch.setitem(
        sys.modules, "pmapdp.lessons.lesson_checks.lesson_99", checks_of_lesson
    )
    verdict = check("99", "exercise", lambda: [1, 2])
    assert not verdict.solved
    assert words in verdict.message
    assert "your code raised" not in verdict.message
