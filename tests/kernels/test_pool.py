"""The thread pool: every tile once, errors, nesting, forks, bounds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from linops.compiled import pool


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("tiles", [0, 1, 2, 7, 100])
def test_every_tile_runs_once(threads: int, tiles: int) -> None:
    seen: list[int] = []
    with pool.limit(threads, exceed=True):
        pool.run(seen.append, tiles)
    assert sorted(seen) == list(range(tiles))


def test_threads_take_part_and_no_more_than_allowed() -> None:
    names = set()
    gate = threading.Barrier(3, timeout=30)  # opens only if three threads are at work at once

    def task(tile: int) -> None:
        gate.wait()
        names.add(threading.get_ident())

    with pool.limit(3, exceed=True):
        pool.run(task, 3)
    assert len(names) == 3 and threading.get_ident() in names


def test_nested_calls_run_in_line() -> None:
    def outer(tile: int) -> None:
        here = threading.get_ident()
        assert pool.workers() == 1
        pool.run(lambda i: inner.append(threading.get_ident() == here), 5)

    inner: list[bool] = []
    with pool.limit(2, exceed=True):
        pool.run(outer, 4)
    assert inner == [True] * 20


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_exception_reaches_the_caller(threads: int) -> None:
    done: list[int] = []

    def task(tile: int) -> None:
        if tile == 3:
            raise KeyError("tile 3")
        time.sleep(0.001)
        done.append(tile)

    with pool.limit(threads, exceed=True):
        with pytest.raises(KeyError, match="tile 3"):
            pool.run(task, 10_000)
        count = len(done)
        assert count < 10_000
        time.sleep(0.02)
        assert len(done) == count  # nothing runs on behind the caller's back
        pool.run(done.append, 4)  # and the pool still works


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.delenv("LINOPS_NUM_THREADS", raising=False)
    assert 1 <= pool.workers() <= cores
    monkeypatch.setenv("LINOPS_NUM_THREADS", "1")
    assert pool.workers() == 1
    monkeypatch.setenv("LINOPS_NUM_THREADS", "4096")
    assert pool.workers() <= cores
    with pool.limit(1):
        assert pool.workers() == 1
    with pytest.raises(ValueError, match="at least one"), pool.limit(0):
        pass


def test_no_thread_at_import_and_one_worker_on_one_core() -> None:
    code = """
import os, threading
from linops.compiled import pool
assert threading.active_count() == 1
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
pool.run(lambda i: None, 50)
assert pool.workers() == 1 and threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    code = """
import os
from linops.compiled import pool
with pool.limit(3, exceed=True):
    pool.run(lambda i: None, 50)
    child = os.fork()
    seen = []
    pool.run(seen.append, 50)
    assert sorted(seen) == list(range(50))
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_interrupt_ends_the_call() -> None:
    code = """
import signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits "ignore"
from linops.compiled import pool
threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
with pool.limit(2, exceed=True):
    try:
        pool.run(lambda i: time.sleep(0.01), 10**6)
    except KeyboardInterrupt:
        seen = []
        pool.run(seen.append, 10)
        assert sorted(seen) == list(range(10))
    else:
        raise SystemExit("no interrupt")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
