"""What a run will cost: dumps, files, bytes and time, from figures measured on a CPU and published for an NPU.

Measured with msprobe 26.2.0 on a model of 48 layers (629 modules), hidden size 64, 64 tokens, one CPU thread: seconds
and bytes of one dumped forward of one rank. Published: msprobe's own table for a 16-layer Llama 2 on four NPUs, as a
multiple of the forward's time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..run import SLIME, VERL_FULLY_ASYNC, VERL_HYBRID
from . import verl
from .answers import Answers
from .slime import engine_cards

_LAYERS, _HIDDEN, _TOKENS = 48, 64, 64
#: (level, what) -> bytes and seconds of a dump in the measurement, and msprobe's own multiple of a forward's time; None
#: where there is no figure.
_MEASURED: dict[tuple[str, str], tuple[float, float | None, float | None]] = {
    ("L0", "statistics"): (864e3, 0.33, 1.6),
    ("L0", "md5"): (915e3, 0.61, 5.7),
    ("mix", "statistics"): (2.6e6, 2.1, 5.6),
    # Its bytes by the ratio that L0 has.
    ("mix", "md5"): (2.6e6 * 915 / 864, None, 24.0),
    ("L0", "tensor"): (38e6, 1.5, None),
    # msprobe's own figures for Llama 2 7B: 7.8 GB for L0, 313 GB for mix.
    ("mix", "tensor"): (38e6 * 313 / 7.8, None, None),
}
SOURCE = (
    "bytes and seconds measured on a CPU (msprobe 26.2.0, 48 layers, hidden size 64, 64 tokens), scaled by layers, "
    "tensors also by prompt length and hidden size; the factor is msprobe's published one for an NPU; nothing was "
    "measured on an NPU"
)
SOURCE_ZH = (
    "字节数与秒数在 CPU 上测得（msprobe 26.2.0，48 层，hidden size 64，64 个 token），按层数折算，"
    "张量还按 prompt 长度和 hidden size 折算；倍数是 msprobe 公布的 NPU 数据；没有任何数据是在 NPU 上测得的"
)


@dataclass(frozen=True)
class Costs:
    """What is expected.

    Attributes:
        steps: training steps (slime: rollouts).
        prompts: that are compared.
        generate_dumps, actor_dumps: forwards that are dumped, over all ranks.
        files: of all dumps; with whole tensors a file for each of them comes on top.
        size: in bytes, of all dumps.
        seconds: that the dumps add on the busiest rank, on a CPU; None where it was not measured.
        factor: a dumped forward's time as a multiple of one that is not; None where nothing is published.
        layers, hidden: of the model, as assumed.
        assumed: whether they are assumed, because no config.json was at hand.
    """

    steps: int
    prompts: int
    generate_dumps: int
    actor_dumps: int
    files: int
    size: int
    seconds: float | None
    factor: float | None
    layers: int
    hidden: int
    assumed: bool

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "source": SOURCE}


def estimate(answers: Answers) -> Costs:
    """Estimate a plan's costs."""
    slime = answers.scenario == SLIME
    steps = 1 if slime else verl.STEPS[answers.scenario]
    prompts = 1 if slime else steps * answers.dp
    # A prompt is computed by all ranks of a rollout engine and by all of a data-parallel group.
    generate = prompts * (engine_cards(answers) if slime else answers.tp)
    actor = steps * answers.world_size
    layers, hidden = _model(Path(answers.model))
    what = "tensor" if answers.tensors else "md5" if answers.md5 else "statistics"
    size, seconds, factor = _MEASURED["mix" if slime else "L0", what]
    known = layers or _LAYERS
    scale = known / _LAYERS
    if answers.tensors:
        size *= answers.prompt_length / _TOKENS * (hidden or 4096) / _HIDDEN
    # In a hybrid run a card dumps its share of the rollout, and training's.
    alone = {VERL_HYBRID: generate / answers.world_size + steps, VERL_FULLY_ASYNC: float(prompts), SLIME: 1.0}
    return Costs(
        steps=steps,
        prompts=prompts,
        generate_dumps=generate,
        actor_dumps=actor,
        files=3 * (generate + actor),
        size=round(size * scale * (generate + actor)),
        seconds=None if seconds is None else round(seconds * scale * alone[answers.scenario], 1),
        factor=factor,
        layers=known,
        hidden=hidden or 4096,
        assumed=not layers,
    )


def _model(folder: Path) -> tuple[int, int]:
    """The layers and the hidden size that a model's config.json tells; 0 where it is not here."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        content = content.get("text_config", content)
        return int(content["num_hidden_layers"]), int(content["hidden_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0, 0


def bytes_text(size: int) -> str:
    """A size for a person: ``14 MB``."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"
