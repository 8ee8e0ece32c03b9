"""What one rank dumped in one step, as typed records: a tensor's statistics, a module's call, a rank's calls.

The records keep msprobe's own words. Named tuples, because a mixture-of-experts model has a hundred thousand of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .tensors import TensorData

#: Beside a dump.json, the folder of the elements.
FOLDER = "dump_tensor_data"
Direction = Literal["forward", "backward", "parameters_grad"]


class Leaf(NamedTuple):
    """One tensor of a call.

    Attributes:
        dtype: as msprobe writes it, ``torch.bfloat16``.
        shape: as dumped, nothing squeezed.
        max: the largest element; None where msprobe wrote null or nothing. NaN and infinities are kept.
        min: the smallest element, likewise.
        mean: the mean, likewise. By default msprobe computes it in the tensor's own dtype.
        norm: the L2 norm, likewise.
        crc: 8 hex digits, the CRC32 of the raw bytes (``summary_mode: md5``); the same for every shape of them.
        file: the file below ``dump_tensor_data`` that has the elements (``task: tensor``).
    """

    dtype: str
    shape: tuple[int, ...]
    max: float | None = None
    min: float | None = None
    mean: float | None = None
    norm: float | None = None
    crc: str | None = None
    file: str | None = None

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


class Call(NamedTuple):
    """One entry of a dump: a module's forward or backward, a module's gradients, or an API call.

    Attributes:
        name: msprobe's whole key.
        module: the dotted path, without ``Module.``, list index and class: ``model.layers.0.self_attn.q_proj``; of an
            API its name.
        list_index: the 0 of ``Module.0.model...``, which msprobe writes where it was started with a list of models.
        cls: the module's class name, ``Linear``; of an API its name.
        call: the N of ``forward.N``: how often this module was called before in the step.
        direction: which pass.
        kind: ``Module``, ``Functional``, ``Tensor``, ``Torch``, ``NPU`` and so on.
        inputs: positional inputs, then keyword inputs, nested ones flattened in order. What is no tensor is None.
        kwargs: keyword inputs that are tensors, by name; of a nested one ``name.0``.
        outputs: flattened in order; what is no tensor is None.
        parameters: by name; for ``parameters_grad`` the gradients. A null one is left out.
        order: the position in the file, which is the order of execution.
    """

    name: str
    module: str
    list_index: int | None
    cls: str
    call: int
    direction: Direction
    kind: str
    inputs: tuple[Leaf | None, ...]
    kwargs: dict[str, Leaf]
    outputs: tuple[Leaf | None, ...]
    parameters: dict[str, Leaf]
    order: int


@dataclass(frozen=True)
class RankDump:
    """All that one rank dumped in one step.

    Attributes:
        path: its ``dump.json``.
        step: the N of ``stepN`` above it; None where the folder has another name.
        rank: the M of ``rankM``; None for ``procPID``, a bare ``rank`` and other names.
        task: ``statistics`` or ``tensor``; empty where the file does not say.
        level: ``L0``, ``L1`` or ``mix``; empty where the file does not say.
        calls: in the order of execution.
        complete: False where the file ends too early or a part of it could not be read: what is missing is unknown.
        problems: what could not be read, a line each, with its place.
    """

    path: Path
    step: int | None
    rank: int | None
    task: str
    level: str
    calls: tuple[Call, ...]
    complete: bool = True
    problems: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing was dumped: the process ended between start and stop, or the engine ran no forward."""
        return not self.calls

    def tensor(self, leaf: Leaf) -> TensorData:
        """The elements of a leaf of this rank.

        Raises:
            EvidenceError: the leaf has no file, or the file is missing, damaged or not what the leaf says.
        """
        from .tensors import read_leaf

        return read_leaf(self.path.parent, leaf)
