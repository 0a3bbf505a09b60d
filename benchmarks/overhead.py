"""What compositions cost beside the work in their leaves: python -m benchmarks.overhead

On 64 float32 entries (fused diagonals: 10^6, gram: 1024^2). The unit is
the raw loop: the same functions of the leaves called one after another. All cases of a table run
interleaved in one process, the garbage collector off; the best of the repeats counts. SciPy, PyLops
and JAX take part where they are installed.
"""

from __future__ import annotations

import argparse
import functools
import gc
import operator
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import linops as lo

Cases = dict[str, Callable[[], Any]]
Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]

TERMS, ENTRIES, LARGE = 20, 64, 1_000_000


def leaf(values: np.ndarray) -> Pair:
    """Two functions that multiply by `values`, opaque to every library."""

    def forward(x: Any) -> Any:
        return values * x

    def adjoint(y: Any) -> Any:
        return values * y

    return forward, adjoint


def fastest(cases: Cases, repeats: int, calls: int) -> dict[str, float]:
    """Seconds a call of each case: the least of `repeats` means over `calls`, interleaved."""
    best = dict.fromkeys(cases, float("inf"))
    for case in cases.values():
        case()
    for _ in range(repeats):
        for name, case in cases.items():
            begin = time.perf_counter()
            for _ in range(calls):
                case()
            best[name] = min(best[name], (time.perf_counter() - begin) / calls)
    return best


def compare(title: str, unit: str, cases: Cases, target: str, repeats: int, calls: int) -> None:
    """Print one table: microseconds, and the ratio to the case named `unit`."""
    best = fastest(cases, repeats, calls)
    print(f"{title} (target {target})")
    for name, seconds in best.items():
        print(f"  {name:32}{seconds * 1e6:12.2f} us{seconds / best[unit]:9.2f}")


def product(terms: list[Any]) -> Any:
    """`terms[0] @ terms[1] @ ...`, one `@` at a time."""
    return functools.reduce(operator.matmul, terms)


def peers(pairs: list[Pair]) -> dict[str, list[Any]]:
    """The same leaves in the other libraries."""
    found: dict[str, list[Any]] = {}
    try:
        from scipy.sparse.linalg import LinearOperator as SciPy
    except ImportError:
        print("scipy is not installed: left out")
    else:
        found["scipy"] = [
            SciPy((ENTRIES, ENTRIES), matvec=f, rmatvec=a, dtype=np.float32) for f, a in pairs
        ]
    try:
        from pylops import FunctionOperator
    except ImportError:
        print("pylops is not installed: left out")
    else:
        found["pylops"] = [
            FunctionOperator(f, a, ENTRIES, ENTRIES, dtype="float32") for f, a in pairs
        ]
    return found


def applying(
    pairs: list[Pair], x: np.ndarray, others: dict[str, list[Any]], repeats: int, calls: int
) -> None:
    """Chains, sums and stacks of 20 leaves on a tiny vector."""
    forwards, backwards = [f for f, _ in reversed(pairs)], [a for _, a in pairs]
    ours = fresh(pairs, lo.Space(ENTRIES))

    def loop(functions: list[Callable[[Any], Any]]) -> Any:
        y = x
        for function in functions:
            y = function(y)
        return y

    def raw() -> Any:
        return loop(forwards)

    chains = {"linops": product(ours)} | {name: product(ops) for name, ops in others.items()}
    expected = raw()
    for name, chain in chains.items():
        if not np.allclose(chain @ x, expected, rtol=1e-5):
            raise AssertionError(f"{name} gives another product")

    cases: Cases = {"raw loop": raw}
    cases |= {name: lambda A=chain: A @ x for name, chain in chains.items()}
    compare("chain of 20", "raw loop", cases, "1.5", repeats, calls)
    adjoints = {name: chain.H for name, chain in chains.items()}
    cases = {"raw loop": lambda: loop(backwards)}
    cases |= {name: lambda A=chain: A @ x for name, chain in adjoints.items()}
    compare("its .H", "raw loop", cases, "1.5", repeats, calls)

    def added() -> Any:
        first, *rest = forwards
        total = first(x)
        for function in rest:
            total = total + function(x)
        return total

    sums = {"linops": functools.reduce(operator.add, ours)}
    sums |= {name: functools.reduce(operator.add, ops) for name, ops in others.items()}
    cases = {"raw loop and additions": added}
    cases |= {name: lambda A=total: A @ x for name, total in sums.items()}
    compare("sum of 20", "raw loop and additions", cases, "2", repeats, calls)

    stacked = lo.vstack(ours)
    joined = lo.concat(ours)
    cases = {
        "raw loop and concatenation": lambda: np.concatenate([f(x) for f in forwards]),
        "linops vstack": lambda: stacked @ x,
        "linops concat": lambda: joined @ x,
    }
    if "pylops" in others:
        from pylops import VStack

        theirs = VStack(others["pylops"])
        cases["pylops VStack"] = lambda: theirs @ x
    compare("vstack of 20", "raw loop and concatenation", cases, "2", repeats, calls)


def building(
    pairs: list[Pair], x: np.ndarray, others: dict[str, list[Any]], repeats: int, calls: int
) -> None:
    """What it takes to build a chain of 20 and its `.H`."""
    space = lo.Space(ENTRIES)
    ours = fresh(pairs, space)
    backed = "with JAX imported" if "jax" in sys.modules else "without JAX"

    def raw() -> Any:
        y = x
        for forward, _ in reversed(pairs):
            y = forward(y)
        return y

    # The first .H of a tree happens once, so every repeat has a tree of its own.
    first = float("inf")
    for _ in range(5 * repeats):
        tree = product(fresh(pairs, space))
        begin = time.perf_counter()
        _ = tree.H
        first = min(first, time.perf_counter() - begin)
    kept = product(ours)
    if kept.H.H is not kept or kept.H.H.H is not kept.H:
        raise AssertionError("a chain of .H stays on two objects")
    chains = {name: product(ops) for name, ops in others.items()}
    cases: Cases = {"raw loop": raw, "linops, again": lambda: kept.H}
    cases |= {f"{name}, each time": lambda A=chain: A.H for name, chain in chains.items()}
    best = fastest(cases, repeats, calls)
    best["linops, the first time"] = first
    print(f"building .H of 20, {backed} (target 6 the first time, 0.15 after)")
    for name, seconds in best.items():
        print(f"  {name:32}{seconds * 1e6:12.2f} us{seconds / best['raw loop']:9.2f}")

    cases = {"raw loop": raw, "linops, 20 terms": lambda: product(ours)}
    cases["linops, 10 terms"] = lambda: product(ours[: TERMS // 2])
    cases["linops, 40 terms"] = lambda: product(ours + ours)
    cases |= {f"{name}, 20 terms": lambda t=ops: product(t) for name, ops in others.items()}
    fewer = max(calls // 10, 1)
    compare(f"building a chain, {backed}", "raw loop", cases, "10, linear", repeats, fewer)


def fresh(pairs: list[Pair], space: lo.Space) -> list[Any]:
    """Leaves that no tree has used."""
    return [lo.from_functions(f, a, domain=space) for f, a in pairs]


def large(repeats: int) -> None:
    """20 diagonals on 10^6 entries are one when they are built."""
    rng = np.random.default_rng(1)
    values = [rng.uniform(0.9, 1.1, LARGE).astype("float32") for _ in range(TERMS)]
    x = rng.normal(size=LARGE).astype("float32")
    merged = product([lo.Diagonal(d) for d in values])

    def raw() -> Any:
        y = x
        for d in reversed(values):
            y = d * y
        return y

    cases: Cases = {
        "one multiply": lambda: values[0] * x,
        "raw loop": raw,
        f"linops {merged.name}": lambda: merged @ x,
    }
    try:
        from pylops import Diagonal
    except ImportError:
        pass
    else:
        theirs = product([Diagonal(d, dtype="float32") for d in values])
        cases["pylops"] = lambda: theirs @ x
    compare("20 Diagonals, 10^6", "one multiply", cases, "1.2", repeats, 5)


def jitted(repeats: int, calls: int) -> None:
    """The chain within `jax.jit`, closed over and as an argument."""
    try:
        import jax
    except ImportError:
        print("jax is not installed: left out")
        return
    rng = np.random.default_rng(2)
    weights = [jax.numpy.asarray(w, "float32") for w in rng.uniform(0.9, 1.1, (TERMS, ENTRIES))]
    x = jax.numpy.asarray(rng.normal(size=ENTRIES), "float32")
    flip = jax.numpy.flip
    # Diagonals alone would be one.
    reverse = lo.from_functions(flip, flip, domain=lo.Space(ENTRIES))
    chain = product([lo.Diagonal(w) @ reverse for w in weights])

    def expression(weights: list[Any], x: Any) -> Any:
        for w in reversed(weights):
            x = w * flip(x)
        return x

    closed = jax.jit(functools.partial(expression, weights))
    passed, ours = jax.jit(expression), jax.jit(lambda A, x: A @ x)
    ours_closed = jax.jit(lambda x: chain @ x)
    cases: Cases = {
        "jnp, arrays closed over": lambda: closed(x).block_until_ready(),
        "linops, closed over": lambda: ours_closed(x).block_until_ready(),
        "jnp, arrays as arguments": lambda: passed(weights, x).block_until_ready(),
        "linops, as an argument": lambda: ours(chain, x).block_until_ready(),
    }
    compare("chain of 20 in jit", "jnp, arrays closed over", cases, "1.3", repeats, calls)


def one_pass(repeats: int) -> None:
    """The weighted gram of a gradient, fused, beside its factors and PyLops."""
    space = lo.Space((1024, 1024), "float32", ("y", "x"))
    rng = np.random.default_rng(3)
    D = lo.Gradient(space)
    w = rng.random(D.codomain.shape).astype("float32")
    W, x = lo.Diagonal(w, D.codomain), space.random(0)
    fused = D.H @ W @ D
    cases: Cases = {
        "factor by factor (NumPy)": lambda: D.H @ (W @ (D @ x)),
        "D.H @ W @ D": lambda: fused @ x,
    }
    try:
        import pylops
    except ImportError:
        pass
    else:
        G = pylops.Gradient((1024, 1024), kind="forward", edge=False, dtype="float32")
        theirs = G.H @ pylops.Diagonal(w.ravel(), dtype="float32") @ G
        flat = x.ravel()
        cases["pylops"] = lambda: theirs @ flat
    compare("weighted gram, 1024^2", "factor by factor (NumPy)", cases, "0.2", repeats, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=40, help="of which the best counts")
    parser.add_argument("--calls", type=int, default=100, help="a repeat, on the tiny vector")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    pairs = [leaf(rng.uniform(0.9, 1.1, ENTRIES).astype("float32")) for _ in range(TERMS)]
    x = rng.normal(size=ENTRIES).astype("float32")
    gc.disable()  # as timeit does: how much there is to collect is not ours to measure
    building(pairs, x, {}, options.repeats, options.calls)
    others = peers(pairs)  # which import JAX
    applying(pairs, x, others, options.repeats, options.calls)
    building(pairs, x, others, options.repeats, options.calls)
    jitted(options.repeats, options.calls)
    large(options.repeats)
    one_pass(options.repeats)


if __name__ == "__main__":
    main()
