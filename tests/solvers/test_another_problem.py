"""A checkpoint goes on with the problem that it was made for: another value of any field, in
whatever holds it, is refused before anything is computed."""

from __future__ import annotations

import functools
import inspect
import math
import pickle
import warnings

import numpy as np
import pytest

import geometries as g
import linops as lo
from linops.errors import CheckpointError
from solvers import cgls
from solvers.fingerprint import fingerprint

from .system import Counting, golden_data, golden_matrix

ANGLES = np.array([0.0, 0.4, 0.9])
LINE, FLAT = g.Detector(4), g.Detector((2, 4))
IMAGE = g.Grid((3, 3))
FAN = g.FanBeam(ANGLES, LINE, 8.0, 16.0)
CONE = g.ConeBeam(ANGLES, FLAT, 8.0, 16.0)
TURN = g.ConeBeam(np.arange(8) * np.pi / 4, FLAT, 8.0, 16.0)
SPACE = lo.Space((3, 4), "float64", axes=("y", "x"))
OTHER = lo.Space((3, 4), "float64", axes=("y", "x"), spacing=2.0)
ROW = lo.Space(4, "float64")
WIDE = lo.Space((16, 16), "float64", axes=("y", "x"))
ONES = np.ones((3, 4))
SHORT = g.FanBeam(np.linspace(0, 3.7, 20), LINE, 8.0, 16.0)
HELIX = g.ConeBeam(np.linspace(-6.0, 6.0, 16), g.Detector((2, 3)), 8.0, 16.0, advance=2.0)
ASIDE = g.FanBeam(TURN.angles, g.Detector(4, offset=1.0), 8.0, 16.0)
UNIT = np.tile([[0.0, 1.0]], (3, 1)), np.tile([[1.0, 0.0]], (3, 1)), np.zeros((3, 2))
TILTED = np.tile([[0.1, 0.995]], (3, 1)) / np.hypot(0.1, 0.995)


def bulge(a, b, view, depth):
    return np.stack(np.broadcast_arrays(a, b, -depth * np.cos(a)), -1)


def bowl(a, b, view, depth):
    return np.stack(np.broadcast_arrays(a, b, depth * np.sin(a)), -1)


# Class: what it is made from, by the names of its constructor, and another value of each.
CASES = {
    g.ParallelBeam: ({"angles": ANGLES, "detector": LINE}, {"angles": ANGLES + 1e-9}),
    g.FanBeam: (
        {"angles": ANGLES, "detector": LINE, "source_to_axis": 8.0, "source_to_detector": 16.0},
        {"angles": ANGLES[::-1], "source_to_axis": 8.5, "source_to_detector": np.full(3, 17.0)},
    ),
    g.ConeBeam: (
        {
            "angles": ANGLES,
            "detector": FLAT,
            "source_to_axis": 8.0,
            "source_to_detector": 16.0,
            "advance": 0.0,
        },
        {"angles": -ANGLES, "source_to_axis": 9, "source_to_detector": 17.0, "advance": 0.5},
    ),
    g.MultiAxisParallel: (
        {"azimuths": ANGLES, "elevations": 0.5, "detector": FLAT},
        {"azimuths": ANGLES + 1e-9, "elevations": np.array([0.5, 0.5, 0.6])},
    ),
    g.Translation: (
        {
            "positions": UNIT[0],
            "detector": LINE,
            "source_to_axis": 8.0,
            "source_to_detector": 16.0,
        },
        {"positions": UNIT[1], "source_to_axis": 8.5, "source_to_detector": 17.0},
    ),
    g.Trajectory: (
        {
            "kind": "fan",
            "sources_or_directions": UNIT[0] * -8,
            "centers": UNIT[0] * 8,
            "u": UNIT[1],
            "v": None,
            "detector": LINE,
        },
        {
            "sources_or_directions": UNIT[0] * -9,
            "centers": UNIT[0] * 7,
            "u": np.stack([TILTED[:, 1], -TILTED[:, 0]], 1),
        },
    ),
    g.Detector: (
        {"shape": (2, 4), "pitch": 1.0, "offset": 0.0, "curvature": None},
        {"shape": (2, 5), "pitch": (1.0, 2.0), "offset": (0.0, 0.3), "curvature": 16.0},
    ),
    g.Surface: (
        {"sampler": bulge, "parameters": [2.0]},
        {"sampler": bowl, "parameters": [2.5]},
    ),
    g.Grid: (
        {"shape": (3, 3), "spacing": 1.0, "center": 0.0},
        {"shape": (3, 4), "spacing": (1.0, 1.1), "center": (0.0, 0.1)},
    ),
    g.Projector: (
        {
            "geometry": FAN,
            "grid": IMAGE,
            "model": "footprint",
            "backend": "portable",
            "precision": "float32",
            "profile": "trapezoid",
            "memory": None,
        },
        {
            "geometry": g.FanBeam(ANGLES, g.Detector(4, offset=0.1), 8.0, 16.0),
            "grid": g.Grid((3, 3), 0.9),
            "backend": "numba",
            "precision": "float64",
            "profile": "box",
        },
    ),
    g.RampFilter: (
        {"space": SPACE, "pitch": 1.0, "window": "ram-lak", "pad": 2, "precision": "float64"},
        {"space": OTHER, "pitch": 2.0, "window": "hann", "pad": 3, "precision": "float32"},
    ),
    g.CosineWeights: (
        {"geometry": FAN, "dtype": "float64", "precision": "float64"},
        {"dtype": "float32", "precision": "float32"},
    ),
    g.AngularWeights: (
        {
            "geometry": FAN,
            "angles": None,
            "weights": None,
            "dtype": "float64",
            "precision": "float64",
        },
        {
            "geometry": g.FanBeam(2 * ANGLES, LINE, 8.0, 16.0),
            "dtype": "float32",
            "precision": "float32",
            "angles": 2 * ANGLES,
            "weights": ANGLES + 1,
        },
    ),
    g.HelicalWeights: (
        {
            "geometry": HELIX,
            "slice_z": 0.0,
            "angles": None,
            "weights": None,
            "dtype": "float64",
            "precision": "float64",
        },
        {
            "geometry": g.ConeBeam(0.8 * HELIX.angles, g.Detector((2, 3)), 8.0, 16.0, advance=2.5),
            "slice_z": 0.3,
            "angles": 0.9 * HELIX.angles,
            "weights": np.linspace(0.1, 1.0, 16),
            "dtype": "float32",
            "precision": "float32",
        },
    ),
    g.ParkerWeights: (
        {
            "geometry": SHORT,
            "isocenter": (0.0, 0.0),
            "dtype": "float64",
            "precision": "float64",
        },
        {
            "geometry": g.FanBeam(SHORT.angles, g.Detector(4, 1.1), 8.0, 16.0),
            "dtype": "float32",
            "precision": "float32",
        },
    ),
    g.DisplacedWeights: (
        {"geometry": ASIDE, "dtype": "float64", "precision": "float64"},
        {
            "geometry": g.FanBeam(TURN.angles, g.Detector(4, offset=1.5), 8.0, 16.0),
            "dtype": "float32",
            "precision": "float32",
        },
    ),
    g.Gather: (
        {"geometry": FAN, "grid": IMAGE, "precision": "float64"},
        {"grid": g.Grid((3, 3), 0.9), "precision": "float32"},
    ),
    g.VolumeGather: (
        {
            "geometry": TURN,
            "grid": g.Grid((2, 3, 3)),
            "precision": "float64",
            "slice_weights": None,
        },
        {
            "grid": g.Grid((2, 3, 3), 0.9),
            "precision": "float32",
            "slice_weights": np.full((2, len(TURN.angles)), 0.5),
        },
    ),
    lo.Space: (
        {"shape": (3, 4), "dtype": "float64", "axes": None, "spacing": None},
        {"shape": (4, 3), "dtype": "float32", "axes": ("y", "x"), "spacing": (1.0, 2.0)},
    ),
    lo.Box: ({"space": SPACE, "lower": 0.0, "upper": 1.0}, {"lower": -1.0, "upper": ONES + 1e-9}),
    lo.Ball: (
        {"space": SPACE, "radius": 1.0, "center": ONES, "norm": 2},
        {"radius": 2.0, "center": ONES * 2, "norm": 1},
    ),
    lo.Cauchy: ({"space": SPACE, "scale": 1.0}, {"scale": 2.0}),
    lo.GemanMcClure: ({"space": SPACE, "scale": 1.0}, {"scale": 2.0}),
    lo.KullbackLeibler: (
        {"space": SPACE, "counts": ONES, "background": 0.0},
        {"counts": ONES * 2, "background": 0.5},
    ),
    lo.L0: ({"space": SPACE, "weights": 1.0}, {"weights": ONES * 2}),
    lo.Linf: ({"space": SPACE}, {}),
    lo.LogSum: ({"space": SPACE, "scale": 1.0}, {"scale": 2.0}),
    lo.Lp: ({"space": SPACE, "p": 0.5, "scale": 1.0}, {"p": 0.6, "scale": 2.0}),
    lo.Simplex: ({"space": SPACE, "radius": 1.0, "axis": None}, {"radius": 2.0, "axis": "x"}),
    lo.Denoiser: (
        {"function": abs, "space": SPACE, "batched": False},
        {"function": math.sqrt, "batched": True},
    ),
    lo.NuclearNorm: ({"space": SPACE, "axes": ("y", "x")}, {"axes": ("x", "y")}),
    lo.TotalGeneralizedVariation: (
        {"space": SPACE, "first": 1.0, "second": 2.0},
        {"first": 2.0, "second": 3.0},
    ),
    lo.AffineSubspace: (
        {"A": lo.SumOver(SPACE, "x"), "b": np.ones(3)},
        {"A": 2.0 * lo.SumOver(SPACE, "x"), "b": np.zeros(3)},
    ),
    lo.HalfSpace: (
        {"space": SPACE, "normal": ONES, "bound": 0.0},
        {"normal": ONES * 2, "bound": 1.0},
    ),
    lo.GroupL1: ({"space": SPACE, "axis": "y"}, {"axis": "x"}),
    lo.Huber: ({"space": SPACE, "delta": 0.5}, {"delta": 0.6}),
    lo.L1: ({"space": SPACE, "weights": 1.0}, {"weights": ONES * 2}),
    lo.L2: ({"space": SPACE}, {}),
    lo.LeastSquares: (
        {"space": SPACE, "target": ONES, "weights": ONES},
        {"target": ONES * 2, "weights": ONES * 2},
    ),
    lo.NonNegative: ({"space": SPACE}, {}),
    lo.Proximity: (
        {"v": ONES, "sigma_prox": 1.0, "space": SPACE},
        {"v": ONES * 2, "sigma_prox": 2.0},
    ),
    lo.QGGMRF: (
        {
            "space": SPACE,
            "p": 2.0,
            "q": 1.2,
            "T": 1.0,
            "sigma_x": 1.0,
            "neighbor_weights": (1.0, 2.0),
        },
        {"p": 1.9, "q": 1.3, "T": 1.5, "sigma_x": 2.0, "neighbor_weights": (1.0, 3.0)},
    ),
    lo.Quadratic: (
        {"space": SPACE, "weight": 1.0, "center": ONES},
        {"weight": 2.0, "center": ONES * 2},
    ),
    lo.TotalVariation: (
        {"space": SPACE, "spacing": None, "eps": 0.1},
        {"spacing": 2.0, "eps": 0.2},
    ),
    lo.Cast: ({"domain": SPACE, "codomain": SPACE}, {"codomain": SPACE.with_dtype("float32")}),
    lo.Convolve: (
        {
            "space": SPACE,
            "kernel": np.ones(3),
            "axes": "x",
            "boundary": "zero",
            "origin": 1,
            "method": "direct",
        },
        {
            "kernel": np.arange(3.0),
            "axes": "y",
            "boundary": "periodic",
            "origin": 0,
            "method": "fft",
        },
    ),
    lo.Crop: ({"space": SPACE, "ranges": {"x": (0, 2)}}, {"ranges": {"x": (1, 3)}}),
    lo.Diagonal: ({"array": ONES, "domain": SPACE}, {"array": ONES + 1e-12, "domain": OTHER}),
    lo.Exp: ({"space": SPACE}, {}),
    lo.FFT: (
        {"space": SPACE, "axes": "x", "norm": "backward", "real": "half"},
        {"axes": "y", "norm": "ortho", "real": "full"},
    ),
    lo.Gradient: ({"space": SPACE}, {}),
    lo.Identity: ({"space": SPACE}, {}),
    lo.Interpolate: (
        {
            "space": SPACE,
            "points": np.array([[0.5], [0.5]]),
            "axes": ("y", "x"),
            "names": ("point",),
        },
        {"points": np.array([[0.5], [0.6]]), "axes": ("x", "y"), "names": ("other",)},
    ),
    lo.Log: ({"space": SPACE}, {}),
    lo.Matrix: (
        {"array": np.ones((3, 4)), "domain": ROW, "codomain": lo.Space(3, "float64")},
        {"array": np.ones((3, 4)) * 2, "codomain": lo.Space(3, "float64", axes=("k",))},
    ),
    lo.Pad: (
        {"space": SPACE, "widths": {"x": (1, 1)}, "mode": "edge"},
        {"widths": {"x": (2, 0)}, "mode": "zeros"},
    ),
    lo.Power: ({"space": SPACE, "exponent": 2.0}, {"exponent": 3.0}),
    lo.Reshape: (
        {"space": SPACE, "shape": (2, 6), "axes": None},
        {"shape": (6, 2), "axes": ("a", "b")},
    ),
    lo.Restriction: (
        {"space": SPACE, "index": np.array([0, 1]), "axes": "x"},
        {"index": np.array([0, 2]), "axes": "y"},
    ),
    lo.Scatter: (
        {"space": SPACE, "index": np.array([0, 1]), "axes": "x"},
        {"index": np.array([0, 2]), "axes": "y"},
    ),
    lo.Flip: ({"space": SPACE, "axes": 0}, {"space": OTHER, "axes": 1}),
    lo.Roll: (
        {"space": SPACE, "shift": 1, "axes": 0},
        {"space": OTHER, "shift": 2, "axes": 1},
    ),
    lo.Real: ({"space": SPACE}, {"space": OTHER}),
    lo.Imag: ({"space": SPACE}, {"space": OTHER}),
    lo.Conj: ({"space": SPACE}, {"space": OTHER}),
    lo.CumulativeSum: ({"space": SPACE, "axis": 0}, {"axis": 1}),
    lo.DCT: ({"space": SPACE, "type": 2, "axes": 0}, {"type": 3, "axes": 1}),
    lo.DST: ({"space": SPACE, "type": 2, "axes": 0}, {"type": 3, "axes": 1}),
    lo.Coils: (
        {"maps": np.ones((2, 3, 4), "complex128"), "space": SPACE.complexify(), "mask": ONES},
        {"maps": np.full((2, 3, 4), 1j), "space": OTHER.complexify(), "mask": ONES * 2},
    ),
    lo.SymmetrizedGradient: ({"space": SPACE}, {}),
    lo.VectorialTotalVariation: (
        {"space": SPACE, "axis": "y", "norm": "frobenius"},
        {"axis": "x", "norm": "nuclear"},
    ),
    lo.WaveletL1: (
        {
            "space": WIDE,
            "weight": 1.0,
            "wavelet": "db2",
            "axes": 0,
            "level": 1,
            "mode": "periodization",
            "means": True,
        },
        {
            "space": WIDE.with_dtype("float32"),
            "weight": 2.0,
            "wavelet": "db3",
            "axes": 1,
            "level": 2,
            "mode": "zero",
            "means": False,
        },
    ),
    lo.NUFFT: (
        {
            "space": SPACE,
            "points": np.zeros((1, 2)),
            "axes": "x",
            "norm": "ortho",
            "origin": (0.0,),
            "tolerance": 1e-9,
        },
        {
            "points": np.full((1, 2), 0.25),
            "axes": "y",
            "norm": "backward",
            "origin": (1.0,),
            "tolerance": 1e-6,
        },
    ),
    lo.Patches: (
        {"space": SPACE, "size": 2, "stride": 1, "axes": 0},
        {"size": 3, "stride": 2, "axes": 1},
    ),
    lo.Repeat: (
        {"operator": lo.Identity(SPACE), "count": 2, "axis": "time"},
        {"operator": lo.Gradient(SPACE), "count": 3, "axis": "energy"},
    ),
    lo.AffineTransform: (
        {"space": SPACE, "matrix": np.eye(2), "offset": np.zeros(2), "axes": ("y", "x")},
        {"matrix": 2 * np.eye(2), "offset": np.ones(2), "axes": ("x", "y")},
    ),
    lo.DeformationField: (
        {"space": SPACE, "displacement": 0.5 * ONES[None, 0], "axes": "x", "reach": None},
        {"displacement": 0.6 * ONES[None, 0]},
    ),
    lo.Resample: (
        {"space": SPACE, "shape": 2, "axes": "x", "antialias": True},
        {"shape": 3, "axes": "y", "antialias": False},
    ),
    lo.Rotate: (
        {"space": SPACE, "angle": 0.1, "axes": ("y", "x"), "center": (1.0, 1.0)},
        {"angle": 0.2, "axes": ("x", "y"), "center": (1.0, 1.5)},
    ),
    lo.Shift: (
        {"space": SPACE, "shift": 0.5, "axes": "x", "method": "linear", "boundary": "zero"},
        {"shift": 0.6, "axes": "y", "boundary": "periodic"},
    ),
    lo.Wavelet: (
        {"space": WIDE, "wavelet": "db2", "axes": 0, "level": 1, "mode": "periodization"},
        {
            "space": WIDE.with_dtype("float32"),
            "wavelet": "db3",
            "axes": 1,
            "level": 2,
            "mode": "zero",
        },
    ),
    lo.SumOver: ({"space": SPACE, "axes": "y"}, {"axes": "x"}),
    lo.Transpose: ({"space": SPACE, "order": (1, 0)}, {"order": (0, 1)}),
    lo.Zero: ({"domain": SPACE, "codomain": SPACE}, {"codomain": OTHER}),
}
# Other values that stand for a parameter whatever the class.
ELSEWHERE = {
    "space": OTHER,
    "domain": OTHER,
    "detector": {2: g.Detector(4, 2.0), 3: g.Detector((2, 4), 2.0)},
    "geometry": {"fan": g.FanBeam(ANGLES, g.Detector(4, 2.0), 8.0, 16.0), "cone": CONE},
}
# Fields that are no other problem, need another class's rules, or stand in place of another field.
LEFT_OUT = {
    (g.Trajectory, "kind"): "a parallel scan has other frames",
    (g.Trajectory, "v"): "of three dimensions alone; MultiAxisParallel has it",
    (g.Projector, "memory"): "how much is computed at a time",
    (g.Projector, "model"): "profiles belong to one model; see the test of models",
    (g.ParkerWeights, "isocenter"): "the radius is constant about one point",
    (g.DisplacedWeights, "isocenter"): "as above",
    (g.Gather, "isocenter"): "as above",
    (g.VolumeGather, "isocenter"): "as above",
    (lo.Matrix, "domain"): "follows from the array",
    (lo.Interpolate, "displacement"): "in place of points",
    (lo.Interpolate, "reach"): "how far displacements go",
    (lo.DeformationField, "axes"): "its extents follow",
    (lo.DeformationField, "reach"): "how far displacements go",
    (lo.Shift, "method"): "phases need the axes whole",
    (lo.Zero, "rule"): "follows from the spaces",
    (lo.TotalVariation, "reduction"): "one value",
    (g.RampFilter, "filter_response"): "in place of a window",
    (g.RampFilter, "fan_step"): "of equiangular fans",
    (g.ParkerWeights, "angles"): "follow from the beam",
    (lo.NonNegative, "space"): "one set whatever the spacing",
}
# Exported, and not what a solve is made of.
NO_PROBLEM = {
    lo.ArrayStore,
    lo.NumpyStore,
    lo.Cost,
    lo.Functional,
    lo.LinearOperator,
    lo.Operator,
    lo.Precision,
    lo.ProductSpace,
    lo.Rule,
    g.Ellipsoid,
    g.LineIntegrals,
    g.Phantom,
    g.Scan,
}


class Holding(Counting):
    """The golden system with anything among its attributes."""

    def __init__(self, held):
        super().__init__(golden_matrix())
        self.held = (held,)


def others():
    for cls, (fields, changes) in CASES.items():
        names = inspect.signature(cls).parameters
        for name in names:
            if (name in changes or name in fields) and (cls, name) not in LEFT_OUT:
                yield cls, name


def changed(cls, name):
    """Another value for a field of the case."""
    fields, changes = CASES[cls]
    if name in changes:
        return changes[name]
    other = ELSEWHERE.get(name)
    if name == "detector":
        return other[fields[name].dims]
    if name == "geometry":
        return other[fields[name].kind]
    return other


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "name"), list(others()))
def test_another_value_of_a_field_is_refused(cls, name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = cls(**CASES[cls][0])
        again = cls(**CASES[cls][0])
        other = cls(**{**CASES[cls][0], name: changed(cls, name)})
    y = golden_data()
    cgls(Holding(made), y, iterations=1, checkpoint_directory=tmp_path)
    A = Holding(other)
    with pytest.raises(CheckpointError, match="operator"):
        cgls(A, y, iterations=2, resume=tmp_path)
    assert A.calls == {"forward": 0, "adjoint": 0}
    repr(again)  # whatever it keeps of what it was asked is no field
    cgls(Holding(pickle.loads(pickle.dumps(again))), y, iterations=2, resume=tmp_path)


@pytest.mark.slow
def test_another_model_of_a_projector_is_refused(tmp_path):
    y = np.ones((3, 4), "float32")
    cgls(g.Projector(FAN, IMAGE), y, iterations=1, checkpoint_directory=tmp_path)
    with pytest.raises(CheckpointError, match="operator"):
        cgls(g.Projector(FAN, IMAGE, "joseph"), y, iterations=2, resume=tmp_path)


def test_every_class_and_field_has_its_case():
    exported = [getattr(part, name) for part in (g, lo) for name in part.__all__]
    missing = {
        cls.__name__
        for cls in filter(inspect.isclass, exported)
        if not inspect.isabstract(cls) and cls not in CASES and cls not in NO_PROBLEM
    }
    assert not missing
    missing = set()
    for cls, (fields, _) in CASES.items():
        for name in inspect.signature(cls).parameters:
            if (name not in fields or changed(cls, name) is None) and (cls, name) not in LEFT_OUT:
                missing.add(f"{cls.__name__}.{name}")
    assert not missing


@pytest.mark.parametrize("kind", ["slots", "nested function", "decorated"])
def test_objects_of_a_users_own_enter_by_all_that_they_hold(kind):
    class Base:
        __slots__ = ("first",)

    class Derived(Base):
        __slots__ = ("second",)

    def made(value):
        if kind == "slots":
            held = Derived()
            held.first, held.second = value, 1.0
            return held
        if kind == "decorated":
            return functools.lru_cache(lambda x: x * value)
        namespace = {"FACTOR": value}
        exec("def outer(x):\n    return (lambda: x * FACTOR)()", namespace)
        return namespace["outer"]

    assert fingerprint(made(1.0)) == fingerprint(made(1.0)) != fingerprint(made(2.0))
