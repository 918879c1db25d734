"""Memory that a step frees is not taken from the system again, unless the user wants it so."""

import platform

import pytest
from launch import python

BLOCK = 20_000_000  # bytes: 4,900 pages
ROUNDS = 20
COUNT_FAULTS = f"""
import resource, threading
from pmapdp.malloc import keep_freed_memory
keep_freed_memory()

def rounds(number):
    for _ in range(number):
        b"x" * {BLOCK}  # malloc, every page written, free

def in_a_thread():  # as XLA's
    rounds(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    rounds({ROUNDS})
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=in_a_thread)
thread.start()
thread.join()
"""


def page_faults(**env):
    done = python("-c", COUNT_FAULTS, env=env)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_used_again():
    pages = BLOCK // 4096
    assert page_faults() < pages
    give_back = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
    assert page_faults(**give_back) > ROUNDS * pages / 2
    tunables = "glibc.malloc.mmap_threshold=4096:glibc.malloc.trim_threshold=0:glibc.malloc.top_pad=0"
    assert page_faults(GLIBC_TUNABLES=tunables) > ROUNDS * pages / 2
