"""The networks of a PerNodeLSTM in one pass over memory: a kernel in C, where there is a compiler for it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from milodo.learned.fused.build import CannotBuild, library

SWITCH = "MILODO_FUSED"
"""The environment variable that, at 0, switches the kernel off."""


def available() -> str | None:
    """Why the kernel is not used for fp32 networks on the CPU; None if it is."""
    return f"{SWITCH}=0 is set" if os.environ.get(SWITCH) == "0" else _load()[1]


def provenance() -> dict[str, str]:
    """How networks are computed here; both ways agree up to rounding."""
    return {"networks": "fused" if (why := available()) is None else f"by torch ({why})"}


@cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    try:
        return library(), None
    except CannotBuild as error:
        return None, str(error)


def applies(v: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether the kernel can compute this call: fp32 on the CPU, ordinary tensors of the shapes that a PerNodeLSTM takes."""
    n, _, inputs = weights[0].shape
    return (
        all(tensor.dtype is torch.float32 and tensor.device.type == "cpu" for tensor in (v, h, c, *weights))
        and v.shape[-3:-1] == (n, inputs)
        and h.shape == c.shape == (*v.shape[:-2], weights[1].shape[-1], v.shape[-1])
        and v.numel() > 0
        and not torch._C._are_functorch_transforms_active()
        and not torch.compiler.is_compiling()
        and available() is None
    )


def per_node_lstm(v: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """PerNodeLSTM.forward for inputs to which the kernel `applies`."""
    return _PerNodeLSTM.apply(v, h, c, *weights) if torch.is_grad_enabled() else _forward(v, h, c, *weights)


class _Rows(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("instance", ctypes.c_int64), ("node", ctypes.c_int64), ("row", ctypes.c_int64))


class _Weights(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("w_x", "w_h", "b_x", "b_h", "w_1", "b_1", "w_2", "b_2"))


class _Call(ctypes.Structure):
    """As the kernel declares it."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("instances", "n", "d", "inputs", "hidden", "outputs", "threads")),
        ("w", _Weights),
        *((name, _Rows) for name in ("v", "h", "c", "o", "h_next", "c_next")),
        ("dw", _Weights),
        *((name, _Rows) for name in ("dv", "dh", "dc")),
    )


def _dense(tensor: Tensor, n: int) -> Tensor:
    """[instances, n, rows, d] with dense coordinates; a view where that is possible."""
    flat = tensor.reshape(-1, n, *tensor.shape[-2:])
    return flat if flat.stride(-1) == 1 or flat.shape[-1] == 1 else flat.contiguous()


def _rows(flat: Tensor | None) -> _Rows:
    return _Rows() if flat is None else _Rows(flat.data_ptr(), *flat.stride()[:3])


def _call(flat: Sequence[Tensor], weights: Sequence[Tensor]) -> _Call:
    """Its inputs v, h and c; they must live until it is done."""
    v, h, c = flat
    instances, n, inputs, d = v.shape
    pointers = _Weights(*(weight.data_ptr() for weight in weights))
    sizes = (instances, n, d, inputs, h.shape[-2], weights[-2].shape[-2], torch.get_num_threads())
    return _Call(*sizes, pointers, _rows(v), _rows(h), _rows(c))


def _run(name: str, call: _Call) -> None:
    kernel = _load()[0]
    if kernel is None or kernel[name](ctypes.byref(call)):
        raise MemoryError("the fused networks could not allocate their buffers")


def _forward(v: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n, outputs = weights[0].shape[0], weights[-2].shape[-2]
    weights = tuple(weight.contiguous() for weight in weights)
    o, h_next, c_next = v.new_empty(*v.shape[:-2], outputs, v.shape[-1]), v.new_empty(h.shape), v.new_empty(c.shape)
    flat = [_dense(tensor, n) for tensor in (v, h, c)]
    call = _call(flat, weights)
    call.o, call.h_next, call.c_next = (_rows(_dense(tensor, n)) for tensor in (o, h_next, c_next))
    _run("milodo_per_node_lstm_forward", call)
    return o, h_next, c_next


class _PerNodeLSTM(torch.autograd.Function):
    """Keeps nothing but its inputs: computing the gates again costs what fetching them from memory would."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = tuple(weight.contiguous() for weight in weights)
        ctx.save_for_backward(v, h, c, *weights)
        ctx.set_materialize_grads(False)
        return _forward(v, h, c, *weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        v, h, c, *weights = ctx.saved_tensors
        n = weights[0].shape[0]
        flat = [_dense(tensor, n) for tensor in (v, h, c)]
        flat_grads = [None if grad is None else _dense(grad, n) for grad in grads]
        call = _call(flat, weights)
        call.o, call.h_next, call.c_next = (_rows(grad) for grad in flat_grads)
        found = [
            tensor.new_empty(tensor.shape) if need else None
            for tensor, need in zip((v, h, c), ctx.needs_input_grad[:3], strict=True)
        ]
        call.dv, call.dh, call.dc = (_rows(None if grad is None else _dense(grad, n)) for grad in found)
        asked = any(ctx.needs_input_grad[3:])
        d_weights = [torch.empty_like(weight) if asked else None for weight in weights]
        if asked:
            call.dw = _Weights(*(grad.data_ptr() for grad in d_weights if grad is not None))
        _run("milodo_per_node_lstm_backward", call)
        return (*found, *d_weights)
