"""`fbp_into`, `fdk_into`, `helical_fdk_into`: reconstruction from store to store, in blocks.

The operator is that of `fbp` and `fdk`: angles, weights and isocenter are resolved from the whole
scan, rows are filtered whole, so the image does not depend on blocks. Here it is only said what is
held in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from geometries.analytic.gather import Gather
from geometries.analytic.gather_volume import VolumeGather
from geometries.analytic.helical import helical_fdk_operator
from geometries.analytic.reconstruct import fbp_operator, fdk_operator
from linops import arrays
from linops.algebra.blocks import axis_name
from linops.algebra.composition import flat_product
from linops.errors import DTypeError
from linops.linear_operator import LinearOperator
from linops.stores import ArrayStore, apply_into, explain_into
from linops.stores.aliases import require_apart, require_injective
from linops.stores.protocol import as_store, require_room, require_writable
from linops.stores.tiles import budget
from linops.stores.tilewise import Stream, admit_stores, refuse_gradients

__all__ = [
    "explain_fbp_into",
    "explain_fdk_into",
    "explain_helical_fdk_into",
    "fbp_into",
    "fdk_into",
    "helical_fdk_into",
]


def fbp_into(
    A: Any,
    source: Any,
    target: Any,
    *,
    chunks: int | Mapping[str, int] | None = None,
    memory: float | None = None,
    scratch: Any = None,
    progress: bool = False,
    **options: Any,
) -> Any:
    """`fbp(A, source)` written into `target`, block by block; `target` itself comes back.

    Parameters
    ----------
    A
        A `Projector`, as `fbp` takes it.
    source
        A store of the projections, leading batch axes in front (see `linops.stores`).
    target
        A store of the image's shape and dtype, with the same batch axes.
    chunks
        Planes of a block by the name of an axis, such as `{"view": 32, "z": 16}`; or one number,
        for the first axis of the image and the views. By default blocks that `memory` holds.
    memory
        Bytes for blocks in hand and filtered views; by default a quarter of what is free, 8 to
        256 MiB. What a filter or a gather itself holds while it runs comes on top.
    scratch
        A store of the shape that `explain_fbp_into` says, for filtered views that `memory` does not
        hold. Without one they are filtered anew for each tile of the image.
    progress
        Whether to draw a bar (needs tqdm).
    options
        As `fbp` takes them: window, pad, angles, weights, short_scan, isocenter, precision.

    Raises
    ------
    GeometryError, ShapeError, DTypeError, ValueError, OSError
        As `fbp` and `linops.stores.apply_into` do, values that are not finite included; before
        anything is written.
    """
    return _into(fbp_operator, A, source, target, chunks, memory, scratch, progress, options)


def fdk_into(
    A: Any,
    source: Any,
    target: Any,
    *,
    chunks: int | Mapping[str, int] | None = None,
    memory: float | None = None,
    scratch: Any = None,
    progress: bool = False,
    **options: Any,
) -> Any:
    """`fdk(A, source)` written into `target`, block by block; `target` itself comes back.

    Takes what `fbp_into` takes, of a circular cone scan, with the options of `fdk`.
    """
    return _into(fdk_operator, A, source, target, chunks, memory, scratch, progress, options)


def helical_fdk_into(
    A: Any,
    source: Any,
    target: Any,
    *,
    chunks: int | Mapping[str, int] | None = None,
    memory: float | None = None,
    scratch: Any = None,
    progress: bool = False,
    **options: Any,
) -> Any:
    """`helical_fdk(A, source)` written into `target`, block by block; `target` comes back.

    Takes what `fbp_into` takes, of a helix, with the options of `helical_fdk`.
    """
    build = helical_fdk_operator
    return _into(build, A, source, target, chunks, memory, scratch, progress, options)


def explain_fbp_into(
    A: Any,
    *,
    chunks: int | Mapping[str, int] | None = None,
    memory: float | None = None,
    scratch: Any = None,
    **options: Any,
) -> str:
    """What `fbp_into` will do: whether views are filtered once, its tiles, the bytes it moves."""
    return _explained(fbp_operator, A, chunks, memory, scratch, options)


def explain_fdk_into(
    A: Any,
    *,
    chunks: int | Mapping[str, int] | None = None,
    memory: float | None = None,
    scratch: Any = None,
    **options: Any,
) -> str:
    """What `fdk_into` will do: whether views are filtered once, its tiles, the bytes it moves."""
    return _explained(fdk_operator, A, chunks, memory, scratch, options)


def explain_helical_fdk_into(
    A: Any,
    *,
    chunks: int | Mapping[str, int] | None = None,
    memory: float | None = None,
    scratch: Any = None,
    **options: Any,
) -> str:
    """What `helical_fdk_into` will do, as `explain_fdk_into` says it."""
    return _explained(helical_fdk_operator, A, chunks, memory, scratch, options)


def _into(
    build: Any,
    A: Any,
    source: Any,
    target: Any,
    chunks: Any,
    memory: float | None,
    scratch: Any,
    progress: bool,
    options: Mapping[str, Any],
) -> Any:
    _refuse_trained(options)
    whole = build(A, **options)
    sources, targets, batch = admit_stores(whole, source, target)
    parts = _parts(whole)
    if parts is None:
        return apply_into(whole, source, target, chunks, memory=memory, progress=progress)
    gather, filters = parts
    held: Any
    if scratch is not None:
        held = _admitted_scratch(scratch, (*batch, *gather.domain.shape), gather, sources, targets)
    elif _held(gather, batch, memory):
        held = ArrayStore(np.empty((*batch, *gather.domain.shape), gather.domain.dtype))
    else:
        return apply_into(whole, source, target, chunks, memory=memory, progress=progress)
    filtering = Stream(filters, _chunks_of(filters, whole, chunks), memory)
    gathering = Stream(gather, _chunks_of(gather, whole, chunks), memory)
    # Values that are not finite are found while views are filtered, before the target is touched.
    filtering.run(sources, [held], batch, check_finite=True, show=progress, ahead=False)
    gathering.run([held], targets, batch, show=progress)
    return target


def _explained(
    build: Any, A: Any, chunks: Any, memory: float | None, scratch: Any, options: Mapping[str, Any]
) -> str:
    whole = build(A, **options)
    parts = _parts(whole)
    if parts is None or (scratch is None and not _held(parts[0], (), memory)):
        said = "views are filtered anew for each tile"
        if parts is not None:
            said += f"; scratch of shape {parts[0].domain.shape} would hold them"
        return f"{said}\n{explain_into(whole, chunks, memory=memory)}"
    gather, filters = parts
    place = "memory" if scratch is None else "scratch"
    return "\n".join(
        (
            f"views are filtered once and held in {place}, shape {gather.domain.shape}",
            explain_into(filters, _chunks_of(filters, whole, chunks), memory=memory),
            explain_into(gather, _chunks_of(gather, whole, chunks), memory=memory),
        )
    )


def _parts(whole: LinearOperator) -> tuple[LinearOperator, LinearOperator] | None:
    """The gather and what comes before it; None where a block of a scan hides them."""
    terms: tuple[Any, ...] = getattr(whole, "terms", ())
    if len(terms) < 2 or not isinstance(terms[0], (Gather, VolumeGather)):
        return None
    return terms[0], flat_product(list(terms[1:]))


def _held(gather: LinearOperator, batch: tuple[int, ...], memory: float | None) -> bool:
    """Whether half of the memory holds all filtered views."""
    size = float(np.prod((*batch, gather.domain.size))) * gather.domain.dtype.itemsize
    return size <= (budget() if memory is None else memory) / 2


def _chunks_of(part: LinearOperator, whole: LinearOperator, chunks: Any) -> Any:
    """Chunks of the whole reconstruction as those of one of its parts."""
    if not isinstance(chunks, Mapping):
        return chunks
    for axis in chunks:
        axis_name(whole, axis)  # raises with the names that there are
    own = {name for m in (*part.domain.members, *part.codomain.members) for name in m.axes or ()}
    return {axis: n for axis, n in chunks.items() if axis in own or axis in part.rule.names}


def _admitted_scratch(
    scratch: Any, shape: tuple[int, ...], gather: LinearOperator, sources: Any, targets: Any
) -> Any:
    store = as_store(scratch, "scratch")
    dtype = gather.domain.dtype
    if tuple(store.shape) != shape or np.dtype(store.dtype) != dtype:
        raise DTypeError(
            f"scratch {store!r} is {np.dtype(store.dtype)} {tuple(store.shape)}; filtered views "
            f"are {dtype} {shape}"
        )
    require_writable(store, "scratch")
    require_injective(store, "scratch")
    refuse_gradients(None, store)
    for other, name in ((sources[0], "source"), (targets[0], "target")):
        require_apart(store, other, ("scratch", name))
    if hasattr(store, "unallocated"):
        require_room([store.unallocated()])
    return store


def _refuse_trained(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if arrays.is_array(value) and arrays.requires_gradient(value):
            raise DTypeError(
                f"{name} requires a gradient, and what is streamed has none: pass its detach(), or "
                "reconstruct in memory"
            )
