"""Gives a plan's arguments to the upstream that would read them: ``plan_worker.py READER WORDS REPORT``.

``WORDS`` is a JSON file of named word lists, as a shell made them of ``run.sh``; ``REPORT`` is written: name -> what
was read, or the error.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def verl(words: list[str]) -> dict[str, Any]:
    """Compose verl's configuration with Hydra, judge it as its entry does, and build the parts' own classes."""
    hydra: Any = importlib.import_module("hydra")
    conf: Any = importlib.import_module("omegaconf").OmegaConf
    tools: Any = importlib.import_module("verl.utils.config")
    algorithm: Any = importlib.import_module("verl.trainer.ppo.utils")
    package = importlib.import_module("verl").__file__
    assert package is not None
    hybrid = words[1] == "verl.trainer.main_ppo"
    folder, name = (
        ("trainer", "ppo_trainer") if hybrid else ("experimental/fully_async_policy", "fully_async_ppo_trainer")
    )
    with hydra.initialize_config_dir(version_base=None, config_dir=str(Path(package).parent / folder / "config")):
        config = hydra.compose(name, words[2:])
    critic, reference = algorithm.need_critic(config), algorithm.need_reference_policy(config)
    if hybrid:  # the fully asynchronous entry does not judge; its batch size 0 would not pass
        tools.validate_config(config, reference, critic)
    parts = {part: tools.omega_conf_to_dataclass(config.actor_rollout_ref[part]) for part in ("rollout", "actor")}
    return {
        "config": conf.to_container(config, resolve=True, throw_on_missing=False),
        "critic": critic,
        "classes": {part: type(made).__name__ for part, made in parts.items()},
    }


def sglang(words: list[str]) -> dict[str, Any]:
    """Parse SGLang's own arguments, which slime's have a prefix before."""
    server: Any = importlib.import_module("sglang.srt.server_args").ServerArgs
    parser = argparse.ArgumentParser(allow_abbrev=False)
    server.add_cli_args(parser)
    own: list[str] = []
    taken = False
    for word in words:
        if word.startswith("--"):
            taken = word.startswith("--sglang-")
        if taken:
            own.append(word.replace("--sglang-", "--"))
    return {"args": _plain(parser.parse_args(["--model-path", "m", *own])), "words": own}


def slime(words: list[str]) -> dict[str, Any]:
    """Parse slime's arguments with its own parsers; ``left`` are Megatron's, whose parser is in no wheel."""
    own = words[words.index("train.py") + 1 :]
    sys.argv = ["train.py", *own]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    provider: Any = importlib.import_module("slime.utils.arguments").get_slime_extra_args_provider()
    provider(parser)
    args, left = parser.parse_known_args(own)
    engine: Any = importlib.import_module("slime.backends.sglang_utils.arguments")
    parse = getattr(engine, "sglang_parse_args", None)
    if parse is None:  # v0.2.2 has one parser for both
        return {"args": _plain(args), "sglang": {}, "left": left}
    return {"args": _plain(args), "sglang": _plain(parse()), "left": left}


def msprobe(words: list[str]) -> dict[str, Any]:
    """Let msprobe read a configuration file, and dump one forward of a module with it."""
    torch: Any = importlib.import_module("torch")
    debugger: Any = importlib.import_module("msprobe.pytorch").PrecisionDebugger(config_path=words[0])
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    debugger.start(model=model)
    model(torch.ones(2, 4))
    debugger.stop()
    debugger.step()
    config = debugger.service.config
    return {"level": str(config.level), "step": list(config.step), "task": config.task, "dump_path": config.dump_path}


def _plain(args: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if isinstance(value, int | float | str | bool)}


READERS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "verl": verl,
    "sglang": sglang,
    "slime": slime,
    "msprobe": msprobe,
}


def main(reader: str, words: str, report: str) -> None:
    """See the module."""
    found: dict[str, Any] = {}
    for name, given in json.loads(Path(words).read_text()).items():
        try:
            found[name] = READERS[reader](given)
        except (Exception, SystemExit):
            found[name] = {"error": traceback.format_exc()}
    Path(report).write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
