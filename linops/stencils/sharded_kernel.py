"""`halo_kernel`: a JAX kernel that runs on one device, run on arrays cut over a mesh.

The kernel stays what it is: a function of whole arrays, shifts and rolls included. Here every
device hands it a window, its own planes with those within reach, and cuts these off what it
returns. Which planes go where is known from shapes alone (`linops/stencils/plane_routes.py`).
Operators of the library do not need this: they run on meshes through their rule and a plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linops.errors import PlacementError, ShapeError
from linops.stencils.plane_routes import ANY, Route, Windows, find_route, shares

__all__ = ["halo_kernel", "halo_widths"]

Side = tuple[int, int]
Reach = int | Sequence[int | Side]


def halo_kernel(
    f: Callable[..., Any],
    reach: Reach,
    mesh: Any = None,
    spec: Any = None,
    boundary: str | Sequence[str] = "periodic",
    *,
    fields: int | None = None,
    block: int | Sequence[int] | None = None,
) -> Callable[..., Any]:
    """`f`, run on arrays that are cut over a mesh of JAX devices.

    Parameters
    ----------
    f
        What runs on one device: `f(*fields, *parameters)` of whole arrays, Pallas kernels, rolls
        and shifts included. Along axes that are cut it is handed windows, so it must serve any
        extent there. It may return one array, or tuples and lists of arrays of any extents that
        follow those of the fields (cells, faces, interiors).
    reach
        How far an output looks at its inputs, in planes: a number for all axes that are cut, or
        one entry an array axis, each a number or a pair (below, above). Missing entries and
        entries below 0 mean 0. A list of these gives every field its own, so that fields that are
        read at their own plane alone are not exchanged.
    mesh
        A `jax.sharding.Mesh`, with Auto or Explicit axes. None, or a mesh that cuts no axis:
        `f` itself is returned.
    spec
        Which mesh axes cut which array axis, a `jax.sharding.PartitionSpec` as JAX reads it:
        counted from the first axis, several mesh axes on one array axis in the order given. A
        list gives every field its own; all must cut the same array axes alike.
    boundary
        What `f` does at the ends of an axis, one for all axes or one an array axis: `"periodic"`
        (its shifts wrap around), or anything else, `"open"`, `"zero"`, `"even"`, `"odd"`,
        `"edge"`: then windows stop at the ends, and `f` applies there what it applies on one
        device.
    fields
        How many of the first arguments are cut; the others are parameters, the same on all
        devices. By default as many as there are specs in a list, else all leading arguments whose
        arrays have the first one's extents (or up to two planes more or fewer) along the axes that
        are cut.
    block
        Round the reach up to whole blocks (`halo_widths`), for kernels that want that.

    Returns
    -------
    callable
        Called as `f` is, with arrays in any placement; jitted, differentiable in every order in
        fields and parameters. Results are whole arrays, cut as `spec` says where the extents
        allow it. With the same devices and values it returns the bits that `jit(f)` does where
        XLA compiles the same arithmetic.

    Raises
    ------
    PlacementError
        Where a spec names an axis that the mesh does not have, or one twice.
    ShapeError
        Where an array lacks an axis that is cut, or an output does not follow the extents of the
        fields (a sum along an axis that is cut: add up outside).

    Notes
    -----
    Under `shard_map` replication is not checked (`check_vma=False`): Pallas needs that, and
    gradients of parameters are then sums over devices of what each has. Extents need not divide
    evenly; a device may have fewer planes than the reach, or none. Where the mesh axes are manual
    already (inside a `shard_map` of the caller's) `f` itself runs.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from linops.stencils import halo_kernel
    >>> def smooth(u, weight):
    ...     return u + weight * (jnp.roll(u, 1, 0) - 2 * u + jnp.roll(u, -1, 0))
    >>> mesh = jax.make_mesh((jax.device_count(),), ("x",))
    >>> sharded = halo_kernel(smooth, reach=1, mesh=mesh, spec=jax.sharding.PartitionSpec("x"))
    >>> print(sharded(jnp.arange(4.0), 0.25))
    [1. 1. 2. 2.]
    """
    if mesh is None:
        return f
    layout = _Layout.of(mesh, spec, reach, boundary, block)
    if not layout.cuts:
        return f
    import jax

    run = jax.jit(functools.partial(_run, f, layout, fields))

    @functools.wraps(f)
    def kernel(*args: Any, **parameters: Any) -> Any:
        manual = set(jax.sharding.get_abstract_mesh().manual_axes)
        if manual & {name for cut in layout.cuts for name in cut.names}:
            return f(*args, **parameters)
        _check_arguments(f, args, parameters)
        return run(*args, **parameters)

    return kernel


def halo_widths(reach: Sequence[int], blocks: Sequence[int] | None = None) -> tuple[int, ...]:
    """Planes to exchange along each axis: 0 for a reach below 1, else rounded up to whole blocks.

    >>> halo_widths((3, 1, 0, -1), (4, 4, 8, 2))
    (4, 4, 0, 0)
    """
    sizes = [1] * len(reach) if blocks is None else [max(int(b), 1) for b in blocks]
    sizes += [1] * (len(reach) - len(sizes))
    return tuple(
        -(-max(int(h), 0) // b) * b for h, b in zip(reach, sizes[: len(reach)], strict=True)
    )


@dataclass(frozen=True)
class _Cut:
    """One array axis that is cut: by which mesh axes, and how far kernels look along it."""

    axis: int
    names: tuple[str, ...]
    devices: int
    low: int
    high: int
    wraps: bool


@dataclass(frozen=True)
class _Layout:
    """A mesh and what it cuts."""

    mesh: Any
    specs: tuple[Any, ...]
    cuts: tuple[_Cut, ...]
    reaches: tuple[dict[int, Side], ...]

    @staticmethod
    def of(mesh: Any, spec: Any, reach: Any, boundary: Any, block: Any) -> _Layout:
        from jax.sharding import PartitionSpec

        if spec is None:
            raise PlacementError(
                "halo_kernel got a mesh without a spec; say which mesh axes cut which array axis, "
                "for instance spec=jax.sharding.PartitionSpec('x')"
            )
        several = isinstance(spec, list)
        entries = [_names_by_axis(mesh, one) for one in (spec if several else [spec])]
        cut_axes = {axis for names in entries for axis in names}
        reaches = _reaches(reach, cut_axes, block)
        ends = _boundaries(boundary)
        cuts = []
        for axis in sorted(cut_axes):
            named = {names[axis] for names in entries if axis in names}
            if len(named) > 1:
                raise PlacementError(
                    f"halo_kernel got specs that cut axis {axis} by {sorted(named)}; one axis is "
                    "cut alike in all fields"
                )
            names = named.pop()
            cuts.append(
                _Cut(
                    axis,
                    names,
                    int(np.prod([mesh.shape[name] for name in names])),
                    max(one.get(axis, (0, 0))[0] for one in reaches),
                    max(one.get(axis, (0, 0))[1] for one in reaches),
                    ends(axis) == "periodic",
                )
            )
        used = [name for cut in cuts for name in cut.names]
        if len(set(used)) < len(used):
            raise PlacementError(f"halo_kernel got a spec that uses a mesh axis twice: {spec}")
        specs = tuple(
            PartitionSpec(*(names.get(axis) for axis in range(max(names, default=-1) + 1)))
            for names in entries
        )
        return _Layout(mesh, specs, tuple(cuts), reaches)

    def spec(self, field: int) -> Any:
        return self.specs[min(field, len(self.specs) - 1)]

    def reach(self, field: int, axis: int) -> Side:
        return self.reaches[min(field, len(self.reaches) - 1)].get(axis, (0, 0))


def _names_by_axis(mesh: Any, spec: Any) -> dict[int, tuple[str, ...]]:
    """The mesh axes longer than 1 that cut each array axis."""
    found = {}
    for axis, entry in enumerate((spec,) if isinstance(spec, str) else tuple(spec)):
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for name in names:
            if name not in mesh.shape:
                raise PlacementError(
                    f"halo_kernel: the spec names the mesh axis {name!r}, the mesh has "
                    f"{tuple(mesh.axis_names)}"
                )
        longer = tuple(name for name in names if mesh.shape[name] > 1)
        if longer:
            found[axis] = longer
    return found


def _reaches(reach: Any, axes: set[int], block: Any) -> tuple[dict[int, Side], ...]:
    if isinstance(reach, list):
        return tuple(_reaches(one, axes, block)[0] for one in reach)
    if isinstance(reach, (int, np.integer)):
        sides = {axis: (int(reach), int(reach)) for axis in axes}
    elif isinstance(reach, tuple):
        sides = {}
        for axis, entry in enumerate(reach):
            low, high = (entry, entry) if isinstance(entry, (int, np.integer)) else entry
            sides[axis] = (int(low), int(high))
    else:
        raise ShapeError(
            f"halo_kernel got reach={reach!r}; wanted a number of planes, a tuple with one entry "
            "an axis, or a list of these, one a field"
        )
    blocks = (block,) * (max(sides, default=0) + 1) if isinstance(block, int) else block or ()

    def widened(axis: int, side: int) -> int:
        return halo_widths((side,), blocks[axis : axis + 1] or None)[0]

    return ({axis: (widened(axis, a), widened(axis, b)) for axis, (a, b) in sides.items()},)


_BOUNDARIES = ("periodic", "open", "zero", "even", "odd", "edge")


def _boundaries(boundary: Any) -> Callable[[int], str]:
    given = (boundary,) if isinstance(boundary, str) else tuple(boundary)
    for one in given:
        if one not in _BOUNDARIES:
            raise ValueError(
                f"halo_kernel got boundary {one!r}; wanted one of {', '.join(_BOUNDARIES)}"
            )
    if isinstance(boundary, str):
        return lambda axis: boundary
    # Axes that are not named are the kernel's own affair.
    return lambda axis: given[axis] if axis < len(given) else "open"


def _check_arguments(f: Any, args: tuple[Any, ...], parameters: dict[str, Any]) -> None:
    import jax

    named = [(f"argument {i}", arg) for i, arg in enumerate(args)] + list(parameters.items())
    for name, value in named:
        for leaf in jax.tree.leaves(value):
            if not (hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))):
                raise TypeError(
                    f"halo_kernel of {getattr(f, '__name__', f)}: {name} holds a "
                    f"{type(leaf).__name__}; fields and parameters are arrays and numbers, "
                    "anything else is bound beforehand with functools.partial"
                )


def _run(
    f: Callable[..., Any], layout: _Layout, fields: int | None, *args: Any, **parameters: Any
) -> Any:
    """The kernel on all devices; traced by `jit`."""
    import jax
    from jax.sharding import PartitionSpec

    if fields is None:
        fields = _count_fields(layout, args)
    if not fields:
        raise ShapeError("halo_kernel was called without a field: its first argument is cut")
    _check_axes(layout, args[:fields])
    first = jax.tree.leaves(args[0])[0].shape
    extents = {cut.axis: first[cut.axis] for cut in layout.cuts}
    outputs = _follow_extents(f, layout, extents, args, parameters, fields)
    windows = {}
    for cut in layout.cuts:
        # The planes of an output that lacks some (an interior) may stand for later ones.
        lacking = max(0, *(-out.longer(cut.axis) for out in outputs))
        windows[cut.axis] = Windows(
            extents[cut.axis], cut.devices, cut.low, cut.high + lacking, cut.wraps
        )
    rest = (args[fields:], parameters)

    def body(shares: tuple[Any, ...], rest: tuple[Any, Any]) -> Any:
        extended = []
        for i, field in enumerate(shares):
            extended.append(
                jax.tree.map(
                    lambda x, whole, i=i: _extend(x, whole.shape, layout, windows, i),
                    field,
                    args[i],
                )
            )
        others, named = rest
        result = f(*extended, *others, **named)
        leaves, treedef = jax.tree.flatten(result)
        return treedef.unflatten(
            _cut_off(x, out, layout, windows) for x, out in zip(leaves, outputs, strict=True)
        )

    specs = tuple(jax.tree.map(lambda _, i=i: layout.spec(i), args[i]) for i in range(fields))
    whole = tuple(
        jax.tree.map(lambda x, i=i: _padded(x, layout, i), args[i]) for i in range(fields)
    )
    shape_of = jax.eval_shape(f, *args, **parameters)
    out_specs = jax.tree.unflatten(jax.tree.structure(shape_of), [o.spec for o in outputs])
    mapped = _shard_map()(
        body,
        mesh=layout.mesh,
        in_specs=(specs, jax.tree.map(lambda _: PartitionSpec(), rest)),
        out_specs=out_specs,
    )
    results = mapped(whole, rest)
    return jax.tree.map(lambda x, wanted: _crop(x, wanted.shape, layout), results, shape_of)


@functools.cache
def _shard_map() -> Callable[..., Any]:
    """`jax.shard_map`, or the one that older versions have, without a check of replication."""
    import inspect

    try:
        from jax import shard_map
    except ImportError:
        from jax.experimental.shard_map import shard_map
    known = inspect.signature(shard_map).parameters
    unchecked = "check_vma" if "check_vma" in known else "check_rep"
    return functools.partial(shard_map, **{unchecked: False})


def _count_fields(layout: _Layout, args: tuple[Any, ...]) -> int:
    """How many leading arguments have the extents of the first along the axes that are cut."""
    import jax

    if len(layout.specs) > 1:
        return len(layout.specs)
    extents: dict[int, int] = {}
    count = 0
    for arg in args:
        for leaf in jax.tree.leaves(arg):
            shape = np.shape(leaf)
            for cut in layout.cuts:
                if cut.axis >= len(shape):
                    return count
                if abs(shape[cut.axis] - extents.setdefault(cut.axis, shape[cut.axis])) > 2:
                    return count
        count += 1
    return count


def _check_axes(layout: _Layout, fields: tuple[Any, ...]) -> None:
    import jax

    for i, field in enumerate(fields):
        for leaf in jax.tree.leaves(field):
            needed = len(layout.spec(i))
            if np.ndim(leaf) < needed:
                raise ShapeError(
                    f"halo_kernel: field {i} has shape {np.shape(leaf)}, the spec "
                    f"{layout.spec(i)} cuts axis {needed - 1}"
                )


def _cuts_of(layout: _Layout, field: int) -> list[_Cut]:
    spec = layout.spec(field)
    return [cut for cut in layout.cuts if cut.axis < len(spec) and spec[cut.axis] is not None]


def _padded(x: Any, layout: _Layout, field: int) -> Any:
    """The array with equal shares, cut over the mesh."""
    import jax
    import jax.numpy as jnp

    widths = [(0, 0)] * np.ndim(x)
    for cut in _cuts_of(layout, field):
        extent = x.shape[cut.axis]
        widths[cut.axis] = (0, -extent % cut.devices)
    if any(after for _, after in widths):
        x = jnp.pad(x, widths)
    sharding = jax.sharding.NamedSharding(layout.mesh, layout.spec(field))
    if _is_explicit(layout.mesh):
        return jax.sharding.reshard(x, sharding)
    return jax.lax.with_sharding_constraint(x, sharding)


def _is_explicit(mesh: Any) -> bool:
    return any(kind.name == "Explicit" for kind in mesh.axis_types)


def _crop(x: Any, shape: tuple[int, ...], layout: _Layout) -> Any:
    """An output without the planes that made shares equal."""
    import jax

    if x.shape == shape:
        return x
    if _is_explicit(layout.mesh):
        x = jax.sharding.reshard(
            x, jax.sharding.NamedSharding(layout.mesh, jax.sharding.PartitionSpec())
        )
    return x[tuple(map(slice, shape))]


@dataclass(frozen=True)
class _Output:
    """How an output follows the fields: which of its axes are cut, and how much longer they are."""

    shape: tuple[int, ...]
    axes: tuple[tuple[int, int, int], ...]  # axis of the fields, axis of the output, planes more
    spec: Any

    def longer(self, axis: int) -> int:
        return next(more for one, _, more in self.axes if one == axis)


def _follow_extents(
    f: Callable[..., Any],
    layout: _Layout,
    extents: dict[int, int],
    args: tuple[Any, ...],
    parameters: dict[str, Any],
    fields: int,
) -> list[_Output]:
    """Which axes of the outputs change with those of the fields, from shapes alone."""
    import jax
    from jax.sharding import PartitionSpec

    whole = jax.tree.leaves(jax.eval_shape(f, *args, **parameters))
    found: list[dict[int, tuple[int, int]]] = [{} for _ in whole]
    for cut in layout.cuts:
        extent = extents[cut.axis]
        share = -(-extent // cut.devices)
        change = share + cut.low + cut.high - extent or share

        def resized(x: Any, field: int, cut: _Cut = cut, change: int = change) -> Any:
            shape = list(np.shape(x))
            if cut in _cuts_of(layout, field):
                shape[cut.axis] += change
            return jax.ShapeDtypeStruct(tuple(shape), jax.dtypes.result_type(x))

        probes = [
            jax.tree.map(lambda x, i=i: resized(x, i), arg) for i, arg in enumerate(args[:fields])
        ]
        others = jax.tree.map(lambda x: jax.typeof(x), args[fields:])
        try:
            resulting = jax.tree.leaves(jax.eval_shape(f, *probes, *others, **parameters))
        except Exception as error:
            raise ShapeError(
                f"halo_kernel: the kernel {getattr(f, '__name__', f)} fails where axis {cut.axis} "
                f"of its fields has {extent + change} planes, a window, instead of {extent}; it "
                "must serve any extent there, and fields that it closes over are passed as "
                f"arguments: {error}"
            ) from error
        for output, (one, other) in enumerate(zip(whole, resulting, strict=True)):
            differing = [
                axis
                for axis in range(len(one.shape))
                if len(other.shape) == len(one.shape) and other.shape[axis] != one.shape[axis]
            ]
            if len(differing) != 1 or other.shape[differing[0]] - one.shape[differing[0]] != change:
                raise ShapeError(
                    f"halo_kernel: output {output} has shape {one.shape}, and {other.shape} where "
                    f"axis {cut.axis} of the fields has {extent + change} planes instead of "
                    f"{extent}; one axis of every output must follow an axis that is cut (what is "
                    "summed or reduced along it is added up outside the kernel)"
                )
            found[output][cut.axis] = differing[0], one.shape[differing[0]] - extent
    outputs = []
    for one, follows in zip(whole, found, strict=True):
        names = {follows[cut.axis][0]: cut.names for cut in layout.cuts}
        spec = PartitionSpec(*(names.get(axis) for axis in range(max(names) + 1)))
        axes = tuple((cut.axis, *follows[cut.axis]) for cut in layout.cuts)
        outputs.append(_Output(one.shape, axes, spec))
    return outputs


def _extend(
    x: Any, shape: tuple[int, ...], layout: _Layout, windows: dict[int, Windows], field: int
) -> Any:
    """The window of this device: axis after axis, so that corners come along."""
    for cut in _cuts_of(layout, field):
        window = windows[cut.axis]
        low, high = layout.reach(field, cut.axis)
        wanted = window.planes(shape[cut.axis] - window.extent, low, high)
        route = find_route(shares(shape[cut.axis], cut.devices), wanted)
        x = _follow(route, x, cut.axis, cut.names, layout.mesh)
    return x


def _cut_off(x: Any, output: _Output, layout: _Layout, windows: dict[int, Windows]) -> Any:
    """This device's share of an output, from what the kernel returned for its window."""
    for cut, (_, axis, longer) in zip(layout.cuts, output.axes, strict=True):
        window = windows[cut.axis]
        held = np.full((cut.devices, x.shape[axis]), ANY)
        for device in range(cut.devices):
            own = window.own(device)
            stop = own.stop + longer if own.stop == window.extent else own.stop
            for plane in range(own.start, min(stop, output.shape[axis])):
                held[device, plane - window.start(device)] = plane
        route = find_route(held, shares(output.shape[axis], cut.devices))
        x = _follow(route, x, axis, cut.names, layout.mesh)
    return x


def _follow(route: Route, x: Any, axis: int, names: tuple[str, ...], mesh: Any) -> Any:
    """Move planes as a route says, inside `shard_map`."""
    import jax
    import jax.numpy as jnp

    parts = [x]
    for send in route.sends:
        piece = _take(x, send.rows, axis, names)
        pairs = [(_place(a, names, mesh), _place(b, names, mesh)) for a, b in send.pairs]
        parts.append(jax.lax.ppermute(piece, names, pairs))
    pool = jnp.concatenate(parts, axis) if len(parts) > 1 else x
    return _take(pool, route.rows, axis, names)


def _place(device: int, names: tuple[str, ...], mesh: Any) -> int:
    """The number that `ppermute` gives a device: by the order of the mesh, not of the names."""
    place = dict(
        zip(names, np.unravel_index(device, [mesh.shape[name] for name in names]), strict=True)
    )
    ordered = [name for name in mesh.axis_names if name in place]
    return int(
        np.ravel_multi_index([place[name] for name in ordered], [mesh.shape[n] for n in ordered])
    )


def _take(x: Any, rows: np.ndarray, axis: int, names: tuple[str, ...]) -> Any:
    """The planes that this device's row lists: slices where rows are alike or in one piece."""
    import jax
    import jax.numpy as jnp

    if (rows == rows[0]).all():
        runs = np.split(rows[0], np.flatnonzero(np.diff(rows[0]) != 1) + 1)
        if len(runs) == 1 and len(rows[0]) == x.shape[axis]:
            return x
        if len(runs) <= 4:
            pieces = [
                jax.lax.slice_in_dim(x, int(run[0]), int(run[-1]) + 1, axis=axis) for run in runs
            ]
            return jnp.concatenate(pieces, axis) if len(pieces) > 1 else pieces[0]
    device = jax.lax.axis_index(names)
    if (np.diff(rows, axis=1) == 1).all():
        start = jnp.asarray(rows[:, 0].astype(np.int32))[device]
        return jax.lax.dynamic_slice_in_dim(x, start, rows.shape[1], axis)
    return jnp.take(x, jnp.asarray(rows.astype(np.int32))[device], axis=axis)
