"""Controls of solvers: written once, shown by name, refused alike, one meaning of `rtol`."""

import inspect

import numpy as np
import pytest

import linops as lo
import solvers

CONTROLS = {
    "callback": None,
    "progress": False,
    "checkpoint_directory": None,
    "resume": None,
    "checkpoint_every": 1,
    "keep": None,
    "rtol": 0.0,
    "atol": 0.0,
}
PROBLEM = {
    "A", "y", "N", "f", "g", "K", "terms", "counts", "background", "prior", "image", "sigma",
    "v", "sigma_prox",
}  # fmt: skip
ITERATIVE = [
    name for name in solvers.__all__ if "x0" in inspect.signature(getattr(solvers, name)).parameters
]


def test_all_solvers_are_looked_at():
    assert {"cgls", "sirt", "tv", "vcd", "denoise", "prox_map", "lsmr", "landweber"} < set(
        ITERATIVE
    )
    assert {"fista", "pdhg", "admm", "mlem", "osem", "os_sart", "art"} < set(ITERATIVE)


@pytest.mark.parametrize("name", ITERATIVE)
def test_controls_are_shown_by_name_with_their_defaults(name):
    solve = getattr(solvers, name)
    parameters = inspect.signature(solve).parameters
    assert {"iterations", "x0"} <= set(parameters)
    for control, default in CONTROLS.items():
        assert parameters[control].default == default
        assert parameters[control].kind is inspect.Parameter.KEYWORD_ONLY
        assert control in solve.__doc__
    assert "**controls" not in solve.__doc__ and "atol + rtol s" in solve.__doc__
    by_place = {n for n, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD}
    assert by_place <= PROBLEM
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword 'iteration'"):
        solve(iteration=3)


A = lo.Matrix(np.random.default_rng(1).random((12, 6)))
Y = A @ np.arange(1.0, 7.0)
MEASURED = {
    "cgls": solvers.cgls,
    "sirt": solvers.sirt,
    "lsmr": solvers.lsmr,
    "landweber": solvers.landweber,
    "os_sart": lambda *a, **o: solvers.os_sart(*a, subsets=3, **o),
    "mlem": solvers.mlem,
    "tv": lambda *a, **o: solvers.tv(*a, weight=0.0, **o),
    "tv by pdhg": lambda *a, **o: solvers.tv(*a, weight=0.0, method="pdhg", **o),
    "vcd": solvers.vcd,
}


@pytest.mark.parametrize("name", MEASURED)
def test_rtol_is_the_residual_over_the_measurements(name):
    found = MEASURED[name](A, Y, iterations=400, rtol=0.05)
    bound = 0.05 * np.linalg.norm(Y)
    assert found.converged is True and found.reason == "residual tolerance reached"
    assert np.linalg.norm(Y - A @ found.solution) <= bound * (1 + 1e-9)
    assert all(r > bound for r in found.residual_history[:-1])
