"""Convolutions and pooling of drawn programs, along one dimension."""

from __future__ import annotations

from tests.fuzz.program import Assign
from tests.fuzz.writer import MOST, Writer


def conv(w: Writer) -> str | None:
    """A convolution, or a transposed one, with a kernel of its own."""
    x = None if w.closed else w.value(lambda x: bool(w.mixable(x)))
    if not x:
        return None
    dim = w.pick(w.mixable(x))
    channels = w.pick([None, *(d for d in w.mixable(x) if d != dim)])
    new = w.pick(
        [None, *(d for d in w.base if d not in w.dims(x) and d not in w.apart)]
    )
    alone = channels is not None and w.maybe()
    tap = w.name("k")
    w.sizes[tap] = w.pick([2, 3])
    kernel = _kernel(w, [d for d in (tap, channels, None if alone else new) if d])
    how, after = _windows(w, dim, w.sizes[tap], transposed := w.maybe())
    if alone:
        how += f", groups={channels!r}"
    kept_dims = [d for d in w.dims(x) if alone or d != channels]
    fn = "conv_transpose" if transposed else "conv"
    text = f"mtf.{fn}({x}, {kernel}, '{dim}:{tap}', {how}) * 0.3"
    return _resized(
        w, text, dim, after, [*kept_dims, *([new] if new and not alone else [])]
    )


def pool(w: Writer) -> str | None:
    """The mean or the maximum of windows."""
    x = w.value(lambda x: bool(w.mixable(x)))
    if not x:
        return None
    dim = w.pick(w.mixable(x))
    fn = w.pick(w.smooth(("avg_pool", "max_pool"), x))
    size = w.pick([2, 3])
    how, after = _windows(w, dim, size, False, pooled=True)
    return _resized(w, f"mtf.{fn}({x}, '{dim}:{size}', {how})", dim, after, w.dims(x))


def _kernel(w: Writer, dims: list[str]) -> str:
    """Writes a variable that can be seen everywhere."""
    name = w.name("w")
    w.modules.append(Assign(name, w.variable(dims)))
    w.variables.append(name)
    w.globals[name] = tuple(dims)
    return name


def _windows(
    w: Writer, dim: str, taps: int, transposed: bool, pooled: bool = False
) -> tuple[str, int]:
    """Returns the source of the stride, padding and dilation of windows, and their number."""
    stride = w.pick([1, 2])
    dilation = 1 if pooled else w.pick([1, 2])
    size = w.sizes[dim]
    reach = (taps - 1) * dilation + 1
    fits = transposed or reach <= size
    padding = w.pick(["same", "causal", *(["valid"] if fits else [])])
    if transposed:
        after = (size - 1) * stride + reach if padding == "valid" else size * stride
    else:
        after = (
            (size - reach) // stride + 1 if padding == "valid" else -(-size // stride)
        )
    options = "" if pooled else f", dilation={dilation}"
    return f"stride={stride}, padding={padding!r}{options}", after


def _resized(
    w: Writer, text: str, dim: str, size: int, dims: list[str] | tuple[str, ...]
) -> str | None:
    """Writes a value one of whose dimensions has another size, and then
    another name.
    """
    if size < 2:
        return None
    if size == w.sizes[dim]:
        return w.emit(text, dims) if w.size(dims) <= MOST else None
    new = f"{dim}_{size}"
    w.sizes[new] = size
    w.pieces.setdefault(dim, set()).add(size)
    out = [new if d == dim else d for d in dims]
    w.note(dims)
    return (
        w.emit(f"mtf.rename({text}, {dim!r}, {new!r})", out)
        if w.size(out) <= MOST
        else None
    )
