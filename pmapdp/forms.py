"""JSON from outside is looked at once, against the form that it should have: no later code finds a field missing."""

import json
import reprlib
import sys
import types
import typing
from typing import Any, Literal, NotRequired

from pmapdp.errors import UserError, reason

TYPES = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false", types.NoneType: "null"}


def parse_json(content: bytes | str, form: Any, name: object, *, advice: str) -> Any:
    """JSON of a known form; a `UserError` about any other begins with the `name` of the file, and ends in `advice`.

    A form is a type made of `Any`, `int`, `float`, `str`, `bool`, `None`, `|`, `Literal`, `list[...]`, `dict[str, ...]`
    and `tuple[..., ...]`; or a dictionary from the names of fields to such forms. Each of these fields must be there,
    unless its form is `NotRequired[...]`; others may be there.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is no JSON that can be read ({reason(error)}): {advice}") from None
    if wrong := mismatch(value, form, ""):
        raise UserError(f"{name} {wrong}: {advice}")
    return value


def mismatch(value: Any, form: Any, place: str) -> str | None:
    """How `value` differs from `form`, as the end of a sentence; None where it does not. `place` is its field."""
    origin, arguments, right = typing.get_origin(form), typing.get_args(form), True
    inside: list[tuple[Any, Any, str]] = []
    if isinstance(form, dict) and (right := isinstance(value, dict)):
        for name, each in form.items():
            if name in value:
                optional = typing.get_origin(each) is NotRequired
                inside.append((value[name], typing.get_args(each)[0] if optional else each, f"{place}.{name}"))
            elif typing.get_origin(each) is not NotRequired:
                return f"has no field {place}.{name}".replace(" .", " ")
    elif origin is Literal:
        right = value in arguments
    elif origin in (types.UnionType, typing.Union):
        right = any(mismatch(value, each, place) is None for each in arguments)
    elif origin in (list, tuple) and (right := isinstance(value, list)):
        inside = [(each, arguments[0], f"{place}[{number}]") for number, each in enumerate(value)]
    elif origin is dict and (right := isinstance(value, dict)):
        inside = [(each, arguments[1], f"{place}.{name}") for name, each in value.items()]
    elif form is float:
        right = type(value) in (int, float) and abs(value) <= sys.float_info.max
    elif form is not Any:
        right = type(value) is (form or types.NoneType)
    if not right:
        return f"holds {reprlib.repr(value)}{f' as {place}'.replace(' .', ' ') if place else ''}, not {in_words(form)}"
    return next((wrong for each in inside if (wrong := mismatch(*each))), None)


def in_words(form: Any) -> str:
    """A form for people: "a whole number or null"."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(in_words, arguments))
    return "an object" if isinstance(form, dict) or origin is dict else TYPES.get(form or types.NoneType, "a list")
