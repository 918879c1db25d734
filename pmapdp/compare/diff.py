"""Set the lines of sources side by side, and list what changes from one to another."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pmapdp.compare.results import Line

CONTEXT = 2  # equal lines that are shown around a change
# Lines are versions of one if they're this alike: a call whose arguments now stand on
# lines of their own, for example.
LIKENESS = 0.4
WORD = r"#.*|\w+|\W"  # A comment is one word, because a part isn't coloured as one.

Row = dict[str, list[str]]  # the lines of each column


class Change(NamedTuple):
    """A line of a difference.

    Attributes:
        sign: " ", "-" or "+", or "…" in place of equal lines.
        before, after: its number in each file.
        text: its text.
    """

    sign: str
    before: int | None
    after: int | None
    text: str


def align(columns: Mapping[str, Sequence[str]]) -> list[Row]:
    """Align the columns by the lines that all of them have.

    Returns:
        Rows that all columns share, and between them rows in which they differ.
    """
    rows: list[Row] = [{name: [] for name in columns}]
    starts = dict.fromkeys(columns, 0)
    for common in find_common_lines(columns):
        between = {}
        shared = {}
        for name, lines in columns.items():
            between[name] = list(lines[starts[name] : common[name]])
            shared[name] = list(lines[common[name] : common[name] + 1])
            starts[name] = common[name] + 1
        if any(between.values()):
            rows += [between, shared]
        else:  # the last row is shared, too
            for name in columns:
                rows[-1][name] += shared[name]
    return [row for row in rows if any(row.values())]


def find_common_lines(columns: Mapping[str, Sequence[str]]) -> list[dict[str, int]]:
    """Find the lines that all columns have.

    Returns:
        The indices of each line, by column. The last ones are the columns' ends.
    """
    first, *others = columns
    indices = [{first: index} for index in range(len(columns[first]))]
    for name in others:
        matcher = difflib.SequenceMatcher(
            has_no_word, columns[first], columns[name], autojunk=False
        )
        for start, other_start, size in matcher.get_matching_blocks():
            for offset in range(size):
                # An empty line may stand in one column before and in another one
                # after what only they have, so it would tear that apart.
                if not has_no_word(columns[first][start + offset]):
                    indices[start + offset][name] = other_start + offset
    common = [line for line in indices if len(line) == len(columns)]
    return [*common, {name: len(lines) for name, lines in columns.items()}]


def has_no_word(line: str) -> bool:
    """Return True for a bracket or an empty line, which alone is nothing in common."""
    return not re.search(r"\w", line)


def find_new_words(line: str, others: Sequence[str]) -> list[tuple[bool, str]]:
    """Split a line into pieces that the nearest of other lines has, and has not.

    Returns:
        True for each piece that's new, and its text.
    """
    nearest = difflib.get_close_matches(line, others, n=1, cutoff=LIKENESS)
    old_words = re.findall(WORD, "".join(nearest))
    words = re.findall(WORD, line)
    matcher = difflib.SequenceMatcher(str.isspace, old_words, words, autojunk=False)
    pieces = []
    for operation, _, _, start, stop in matcher.get_opcodes():
        if operation != "delete":
            pieces.append((operation != "equal", "".join(words[start:stop])))
    return pieces


def find_changes(before: Sequence[Line], after: Sequence[Line]) -> list[Change]:
    """Return the changes between two sources, with two lines around each."""
    old_texts = [line.text for line in before]
    new_texts = [line.text for line in after]
    matcher = difflib.SequenceMatcher(None, old_texts, new_texts, autojunk=False)
    changes: list[Change] = []
    for group in matcher.get_grouped_opcodes(CONTEXT):
        if changes:
            changes.append(Change("…", None, None, ""))
        for operation, start, stop, after_start, after_stop in group:
            removed = before[start:stop]
            added = after[after_start:after_stop]
            if operation == "equal":
                for old, new in zip(removed, added, strict=True):
                    changes.append(Change(" ", old.number, new.number, new.text))
            else:
                changes += [Change("-", old.number, None, old.text) for old in removed]
                changes += [Change("+", None, new.number, new.text) for new in added]
    return changes
