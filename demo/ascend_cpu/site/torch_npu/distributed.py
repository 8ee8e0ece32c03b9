"""``torch_npu.distributed`` as far as msprobe looks: torch's own collectives are used."""

import types

distributed_c10d = types.ModuleType("torch_npu.distributed.distributed_c10d")
