"""What a benchmark says of a process that failed."""

from benchmarks.workers import what_happened


def test_the_line_that_says_what_happened():
    assert what_happened(2, "a warning\nerror: one sentence\na thread's last word\n") == "one sentence"
    assert what_happened(1, "Traceback\nValueError: no\n\n") == "ValueError: no"
    assert what_happened(-9, "") == "ended by SIGKILL: it said nothing"
