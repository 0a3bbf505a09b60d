"""The one thread pool: spreads the tiles of a compiled kernel over the cores we were given.

Kernels are serial and release the GIL; this is the only source of parallelism on a CPU. No
thread exists before the first call that needs one, and a call from inside a worker runs in
line, so nothing nests and nothing oversubscribes. What a tile is belongs to the kernel.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue

__all__ = ["limit", "run", "workers"]


def workers() -> int:
    """The number of threads that a call may use now, at least 1.

    The smallest of: the cores in the process's affinity mask, the cgroup's CPU quota (rounded
    up), `LINOPS_NUM_THREADS` where it is a positive integer, and an enclosing `limit`.
    """
    if _here.inside:
        return 1
    count = min(_cores(), _quota())
    asked = os.environ.get("LINOPS_NUM_THREADS", "").strip()
    if asked.isdigit() and int(asked) > 0:
        count = min(count, int(asked))
    if _here.bound is not None:
        bound, exceed = _here.bound
        count = bound if exceed else min(count, bound)
    return count


@contextmanager
def limit(count: int, *, exceed: bool = False) -> Iterator[None]:
    """Let calls of this thread use at most `count` threads, for tests and benchmarks.

    With `exceed` they use exactly that many, also where there are fewer cores.
    """
    if count < 1:
        raise ValueError(f"limit({count}): at least one thread is needed")
    before, _here.bound = _here.bound, (count, exceed)
    try:
        yield
    finally:
        _here.bound = before


def run(task: Callable[[int], object], tiles: int) -> None:
    """Call `task(i)` once for every i in `range(tiles)`, in any order, on several threads.

    The caller's thread takes part. One tile, one worker, or a caller that is itself a worker:
    everything runs in line, in order. The first exception stops the hand-out of tiles and is
    raised here once the tiles under way have ended.
    """
    helpers = min(workers(), tiles) - 1
    if helpers < 1:
        for tile in range(tiles):
            task(tile)
        return
    job = _Job(task, tiles)
    _crew().post(job, helpers)
    job.lead()


class _Here(threading.local):
    """What this thread is: a worker or not, and the bound that `limit` has set."""

    inside: bool = False
    bound: tuple[int, bool] | None = None


_here = _Here()


class _Job:
    """One call of `run`: the next tile, who is at work, and the first exception."""

    def __init__(self, task: Callable[[int], object], tiles: int) -> None:
        self._task = task
        self._tiles = tiles
        self._next = itertools.count()
        self._state = threading.Condition(threading.Lock())
        self._active = 0
        self._closed = False
        self._error: BaseException | None = None

    def lead(self) -> None:
        """The caller's part: work, wait for the others, raise what went wrong."""
        _here.inside = True
        try:
            self._work()
        except BaseException as error:
            self._fail(error)
        finally:
            _here.inside = False
        while True:
            try:
                with self._state:
                    self._closed = True
                    while self._active:
                        self._state.wait()
                break
            except BaseException as error:  # an interrupt: stop the others, then go on waiting
                self._fail(error)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None

    def help(self) -> None:
        """A worker's part; a worker that wakes too late does nothing."""
        with self._state:
            if self._closed:
                return
            self._active += 1
        try:
            self._work()
        except BaseException as error:
            self._fail(error)
        finally:
            with self._state:
                self._active -= 1
                self._state.notify()

    def _work(self) -> None:
        while not self._closed:
            tile = next(self._next)
            if tile >= self._tiles:
                return
            self._task(tile)

    def _fail(self, error: BaseException) -> None:
        with self._state:
            self._closed = True
            if self._error is None:
                self._error = error


class _Crew:
    """Persistent daemon threads that take jobs from one queue."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._size = 0

    def post(self, job: _Job, helpers: int) -> None:
        with self._lock:
            while self._size < helpers:
                name = f"linops-{self._size}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._size += 1
        for _ in range(helpers):
            self._jobs.put(job)

    def _serve(self) -> None:
        _here.inside = True
        while True:
            job = self._jobs.get()
            job.help()
            del job  # a waiting thread keeps no task, and so no array, alive


_crew_made: _Crew | None = None
_making = threading.Lock()


def _crew() -> _Crew:
    global _crew_made
    with _making:
        if _crew_made is None:
            _crew_made = _Crew()
        return _crew_made


def _forget_crew() -> None:
    # A forked child has none of its parent's threads, and may have its locks half taken.
    global _crew_made, _making
    _crew_made = None
    _making = threading.Lock()
    _here.inside = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_crew)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _quota() -> int:
    """CPUs that the cgroup (version 2, then 1) grants, rounded up; very many without a quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            base = Path("/sys/fs/cgroup/cpu")
            quota = (base / "cpu.cfs_quota_us").read_text().strip()
            period = (base / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return 1 << 20
    try:
        granted = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):
        return 1 << 20
    return max(1, math.ceil(granted)) if granted > 0 else 1 << 20
