"""The versions that go together, for rules that hold for some of them. A test holds this table to VERSIONS.lock."""

from __future__ import annotations

from .run import SLIME, VERL_FULLY_ASYNC, VERL_HYBRID

STACKS: dict[str, dict[str, str]] = {
    "verl-0.8": {"verl": "0.8.0", "vllm-ascend": "0.18.0", "vllm": "0.18.0", "mindstudio-probe": "26.2.0"},
    "verl-0.8-cuda": {"verl": "0.8.0", "vllm": "0.18.0", "mindstudio-probe": "26.2.0"},
    "verl-b7dabd83": {
        "verl": "0.8.0.dev0+gb7dabd83",
        "vllm-ascend": "0.18.0",
        "vllm": "0.18.0",
        "mindstudio-probe": "26.2.0",
    },
    "slime-0.2.2": {"slime": "0.2.2", "sglang": "0.5.8", "mindstudio-probe": "26.2.0"},
    "slime-0.2.4": {"slime": "0.2.4", "sglang": "0.5.10.post1", "mindstudio-probe": "26.2.0"},
}

#: What is assumed where nothing says which stack a run is for.
DEFAULT = {VERL_HYBRID: "verl-0.8", VERL_FULLY_ASYNC: "verl-0.8", SLIME: "slime-0.2.2", "": ""}


def versions(text: str) -> dict[str, str]:
    """The versions of a stack's name, or of pins written ``verl=0.9.1,vllm-ascend=0.23.0``.

    Raises:
        KeyError: no such stack, an upstream that is in none, or a version that begins with no digit.
    """
    if "=" not in text:
        return dict(STACKS[text])
    known = {name for stack in STACKS.values() for name in stack}
    pins = dict(pin.replace("==", "=").partition("=")[::2] for pin in text.split(","))
    for name, version in pins.items():
        if name not in known or not version[:1].isdigit():
            raise KeyError(text)
    return pins
