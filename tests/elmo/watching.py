"""What torch does inside a block, operation by operation."""

from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Operation(NamedTuple):
    """One operation, and the shape and the bytes of storage of each tensor that it returned."""

    function: Any
    shapes: list[tuple[int, ...]]
    bytes: list[int]

    @property
    def name(self) -> str:
        return str(self.function.overloadpacket.__name__)


class Watching(TorchDispatchMode):
    """Lists the operations of the block."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves(made) if isinstance(one, Tensor)]
        sizes = [one.untyped_storage().nbytes() for one in tensors]
        self.operations.append(Operation(function, [tuple(one.shape) for one in tensors], sizes))
        return made
