"""Small stand-ins for msprobe, torch and TensorDict, with the behaviour that capture depends on and no more.

``PrecisionDebugger`` does what mindstudio-probe 26.2.0 was seen to do: one instance per process whose second
construction ignores its arguments, a service with a deep copy of the configuration, a step that is set by start()
alone and freezes behind the step filter, a dump.json skeleton at start() that stop() and step() complete.
"""

from __future__ import annotations

import copy
import json
import os
import types
from pathlib import Path
from typing import Any, ClassVar, Self


class Service:
    """msprobe's service: the loop, the current step, and what a start really does."""

    def __init__(self, config: types.SimpleNamespace, distributed: Distributed) -> None:
        self.config = copy.deepcopy(config)
        self.loop = 0
        self.init_step = 0
        self.current_iter = 0
        self.current_rank: int | None = None
        self.should_stop_service = False
        self.primitive_switch = False
        self.dump_iter_dir: str | None = None
        self.first_start = True
        self.entries: list[str] = []
        self.started: list[dict[str, Any]] = []
        self.starts = 0
        self._distributed = distributed

    def start(self, model: Any, rank_id: int | None) -> None:
        self.current_iter = self.loop + self.init_step
        self.started.append({"model": model, "rank_id": rank_id})
        if self.should_stop_service or (self.config.step and self.current_iter > max(self.config.step)):
            self.should_stop_service = True
            return
        if self.config.step and self.current_iter not in self.config.step:
            return
        if self.first_start:
            self.current_rank = rank_id if rank_id is not None else self._distributed.rank
        if self.config.rank and self.current_rank not in self.config.rank:
            return
        self.first_start = False
        self.primitive_switch = True
        self.dump_iter_dir = str(Path(self.config.dump_path) / f"step{self.current_iter}")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.entries:
            self._save()

    @property
    def folder(self) -> Path:
        assert self.dump_iter_dir is not None
        rank = f"proc{os.getpid()}" if self.current_rank is None else f"rank{self.current_rank}"
        return Path(self.dump_iter_dir) / rank

    def record(self, name: str) -> None:
        """A module's hook: data are kept only while a dump is on."""
        if self.primitive_switch:
            self.entries.append(name)

    def stop(self) -> None:
        if self.primitive_switch:
            self.primitive_switch = False
            self._save()

    def step(self) -> None:
        if self.should_stop_service:
            return
        if self.entries:
            self._save()
        self.loop += 1
        self._reset_status()

    def _reset_status(self) -> None:
        self.entries = []

    def _save(self) -> None:
        (self.folder / "dump.json").write_text(json.dumps({"data": self.entries}))


class PrecisionDebugger:
    """msprobe's process singleton."""

    _instance: ClassVar[PrecisionDebugger | None] = None
    distributed: ClassVar[Distributed]
    calls: ClassVar[list[str]]

    def __new__(cls, config_path: str | None = None) -> Self:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance.initialized = False
        return cls._instance  # type: ignore[return-value]

    initialized: bool

    def __init__(self, config_path: str | None = None) -> None:
        if self.initialized:
            return
        self.initialized = True
        assert config_path is not None
        content = json.loads(Path(config_path).read_text())
        if content["task"] not in ("statistics", "tensor"):
            raise ValueError("The task is not in the list.")
        self.config = types.SimpleNamespace(
            dump_path=content["dump_path"],
            level=content.get("level", "L1"),
            step=content.get("step", []),
            rank=content.get("rank", []),
        )
        self.service = Service(self.config, self.distributed)

    def start(self, model: Any = None, rank_id: int | None = None) -> None:
        self.calls.append("start")
        if self.config.level != "L1" and model is None:
            raise ValueError("missing the parameter 'model'")
        self.service.start(model, rank_id)

    def stop(self) -> None:
        self.calls.append("stop")
        self.service.stop()

    def step(self) -> None:
        self.calls.append("step")
        self.service.step()


class AclGraphDumper:
    """vllm-ascend's dumper for graph mode: no service."""


class Distributed:
    """torch.distributed."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.world = 1

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.rank is not None

    def get_rank(self) -> int:
        assert self.rank is not None
        return self.rank

    def get_world_size(self) -> int:
        return self.world


class Device:
    """torch.cuda or torch.npu with one number for a random state."""

    def __init__(self, available: bool) -> None:
        self.state = 0
        self._available = available

    def is_available(self) -> bool:
        return self._available

    def get_rng_state_all(self) -> int:
        return self.state

    def set_rng_state_all(self, state: int) -> None:
        self.state = state


class Torch(types.ModuleType):
    """What capture touches of torch: its random state, its deterministic settings, and whether it is distributed."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.distributed = Distributed()
        self.cuda = Device(available=False)
        self.npu = Device(available=True)
        self.rng = 0
        self.deterministic: tuple[bool, bool] = (False, False)
        # What torch itself does in deterministic mode unless told otherwise.
        self.utils = types.SimpleNamespace(deterministic=types.SimpleNamespace(fill_uninitialized_memory=True))
        self.backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(deterministic=False, benchmark=True))

    def get_rng_state(self) -> int:
        return self.rng

    def set_rng_state(self, state: int) -> None:
        self.rng = state

    def use_deterministic_algorithms(self, mode: bool, *, warn_only: bool = False) -> None:
        self.deterministic = (mode, warn_only)

    def are_deterministic_algorithms_enabled(self) -> bool:
        return self.deterministic[0]

    def is_deterministic_algorithms_warn_only_enabled(self) -> bool:
        return self.deterministic[1]


def seed_all_of(torch: Torch) -> Any:
    """msprobe's seed_all over a fake torch."""

    def seed_all(seed: int = 1234, mode: bool = False) -> None:
        os.environ["PYTHONHASHSEED"] = str(seed)
        torch.rng = torch.npu.state = seed
        torch.use_deterministic_algorithms(mode)
        torch.backends.cudnn.deterministic = True

    return seed_all


class Tensor:
    """A dense integer tensor as nested lists: as much of torch.Tensor as capture uses."""

    def __init__(self, values: list[Any], is_view: bool = False) -> None:
        self.values = values
        #: Whether it shares memory with another tensor, as every slice of a torch tensor does.
        self.is_view = is_view

    is_nested = False

    def size(self, dim: int) -> int:
        return len(self.values) if dim == 0 else len(self.values[0])

    def tolist(self) -> list[Any]:
        return copy.deepcopy(self.values)

    def clone(self) -> Tensor:
        return Tensor(self.tolist())

    def sum(self, dim: int) -> Tensor:
        assert dim == -1
        return Tensor([sum(row) for row in self.values])

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Tensor:
        if isinstance(key, slice):
            return Tensor(self.values[key], is_view=True)
        first, last = key
        if first is Ellipsis:
            return Tensor([_cut_last(row, last) for row in self.values], is_view=True)
        assert first == slice(None)
        return Tensor([row[last] for row in self.values], is_view=True)


def _cut_last(row: list[Any], last: slice) -> list[Any]:
    return [_cut_last(inner, last) for inner in row] if isinstance(row[0], list) else row[last]


class NonTensorData:
    """tensordict's wrapper of one value."""

    def __init__(self, data: Any) -> None:
        self.data = data


class NonTensorStack:
    """tensordict's wrapper of one value for each sample."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def tolist(self) -> list[Any]:
        return list(self._values)


class TensorDict:
    """tensordict's TensorDict: keyed values and a batch size."""

    def __init__(self, values: dict[str, Any], batch_size: Any) -> None:
        self._values = values
        self.batch_size = batch_size

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def keys(self) -> Any:
        return self._values.keys()

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)


class DataProto:
    """verl's DataProto."""

    def __init__(self, batch: TensorDict, non_tensor_batch: dict[str, Any], meta_info: dict[str, Any]) -> None:
        self.batch = batch
        self.non_tensor_batch = non_tensor_batch
        self.meta_info = meta_info
