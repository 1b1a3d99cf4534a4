"""A GPU pretended on a processor: its tensors hold numbers, and mix with no others.

What a real GPU refuses is refused: an operation on tensors of both devices, and numpy on a tensor
that was not copied to the host. What it computes is what the processor computes, so results can be
compared. Graphs and compiled code are left out.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = "cuda:0"
_MOVES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class OnDevice(Tensor):
    """A tensor on the pretended device. To autograd it is a meta tensor: that needs no driver."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: torch.device(GPU))  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        made: OnDevice = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",
        )
        made.inner = inner
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    def __repr__(self, **_: object) -> str:
        return f"OnDevice({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    """Sees operations whose arguments are no tensors of the device, such as new tensors on it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the processor, if its tensors are of one device."""
    if "pin" in str(func):
        return args[0] if "pin_memory" in str(func) else False
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    there = [one for one in tensors if isinstance(one, OnDevice)]
    here = [one for one in tensors if not isinstance(one, OnDevice) and one.dim()]
    if there and here and func not in _MOVES:
        indexes = func is torch.ops.aten.index.Tensor and isinstance(args[0], OnDevice)
        if not indexes:
            raise RuntimeError(f"{func} is given tensors of two devices")
    on_device = bool(there)
    if (device := kwargs.get("device")) is not None:
        on_device = torch.device(device).type in ("cuda", "meta")  # as autograd asks for it
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if func is torch.ops.aten.copy_.default:
        _inner(args[0]).copy_(_inner(args[1]))
        return args[0]
    found = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if torch.Tag.inplace_view in func.tags and there:
        with no_dispatch():  # the wrapper's own shape too
            func(*args, **kwargs)
    if not on_device:
        return found
    return tree_map(lambda one: _wrapped(one, there), found)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value


def _wrapped(value: Any, there: list[OnDevice]) -> Any:
    if not isinstance(value, Tensor):
        return value
    for one in there:
        if one.inner is value:
            return one
    return OnDevice(value)


def _tensor(data: Any, *, device: Any = None, make: Any = torch.tensor, **given: Any) -> Tensor:
    """`torch.tensor`, by way of the host."""
    made: Tensor = make(data, **given)
    return made if device is None else made.to(device)


class _NoGrad:
    """`torch.inference_mode` without its own kind of tensors."""

    _context: torch.no_grad

    def __enter__(self) -> None:
        self._context = torch.no_grad()
        self._context.__enter__()

    def __exit__(self, *given: Any) -> None:
        self._context.__exit__(*given)


class _Event:
    """One that has come: the processor computes at once."""

    def record(self, stream: Any) -> None:
        """Note nothing."""

    def synchronize(self) -> None:
        """Return at once."""


def _pretending(run: Any) -> Any:
    """A thread's `run` under the mode, which is of one thread."""

    def with_mode(self: threading.Thread) -> None:
        with _Device():
            run(self)

    return with_mode


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Pretend that this machine has a GPU; yield its name."""
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "_lazy_init", lambda: None)
        patched.setattr(torch.cuda, "is_available", lambda: True)
        # A torch built for CUDA would ask the driver, which is not there.
        patched.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: None
        )
        patched.setattr(torch.cuda, "synchronize", lambda device=None: None)
        patched.setattr(torch.cuda, "Event", _Event)
        patched.setattr(torch.cuda, "current_stream", lambda device=None: None)
        patched.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 0)
        patched.setattr(torch, "tensor", _tensor)
        # On other threads too, where no mode sees it.
        patched.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self)
        patched.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
        patched.setattr(torch.cuda, "get_rng_state", lambda device=None: None)
        patched.setattr(torch.cuda, "set_rng_state", lambda state, device=None: None)
        patched.setenv("ELMO_CUDA_GRAPHS", "0")
        patched.setattr(threading.Thread, "run", _pretending(threading.Thread.run))
        # Views of tensors of a subclass can't be made in inference mode.
        for name in ("__enter__", "__exit__"):
            patched.setattr(torch.inference_mode, name, getattr(_NoGrad, name))
        with torch.compiler.set_stance("force_eager"), _Device():
            yield GPU
