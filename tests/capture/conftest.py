"""A process with a fake msprobe and a fake torch, and an msprobe file to start from."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capture import fakes
from train_infer_consistency.capture import folders, session, switches

VARIABLES = (
    "DUMP_ON",
    "PROMPTS_ONLY",
    "DUMP_PHASE",
    "MSPROBE_CONFIG_PATH",
    "MSPROBE_SEED",
    "SGLANG_MSPROBE_DUMP",
    "MSPROBE_GENERATE_CONFIG",
    "MSPROBE_MIN_DUMP_TOKENS",
    "CONSISTENCY_RUN_ID",
    "CONSISTENCY_ROLLOUT_ID",
    "CONSISTENCY_DUMP_ALL",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VERL_REPLICA_RANK",
    "PYTHONHASHSEED",
)


class Process:
    """One process as capture sees it; ``restart`` makes it another one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._patch = monkeypatch
        self.root = tmp_path / "dumps"
        self.config = tmp_path / "config.json"
        self.site = tmp_path / "site"
        self.install_msprobe("26.2.0")
        monkeypatch.syspath_prepend(str(self.site))
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        self.write_config()
        self.restart()

    def install_msprobe(self, version: str) -> None:
        """Make importlib.metadata find this version of msprobe, and no other."""
        for old in self.site.glob("*.dist-info/METADATA"):
            old.unlink()
            old.parent.rmdir()
        info = self.site / f"mindstudio_probe-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mindstudio-probe\nVersion: {version}\n")

    def restart(self) -> None:
        """A new process: nothing open, switches unread, msprobe and torch fresh."""
        self.torch = fakes.Torch()
        debugger: Any = type("PrecisionDebugger", (fakes.PrecisionDebugger,), {"_instance": None, "calls": []})
        debugger.distributed = self.torch.distributed
        self.debugger = debugger
        msprobe: Any = types.ModuleType("msprobe.pytorch")
        msprobe.PrecisionDebugger = debugger
        msprobe.seed_all = fakes.seed_all_of(self.torch)
        self.msprobe = msprobe
        self._patch.setitem(sys.modules, "torch", self.torch)
        self._patch.setitem(sys.modules, "msprobe", types.ModuleType("msprobe"))
        self._patch.setitem(sys.modules, "msprobe.pytorch", msprobe)
        session._open_sessions.clear()
        folders._process_folders.clear()
        switches.switches.cache_clear()

    def env(self, **variables: str) -> None:
        """Set variables before the process reads its switches."""
        for name, value in variables.items():
            self._patch.setenv(name, value)
        switches.switches.cache_clear()

    def write_config(self, **more: Any) -> None:
        content = {"task": "statistics", "dump_path": str(self.root), "rank": [], "step": [], "level": "L0", **more}
        self.config.write_text(json.dumps(content))

    @property
    def service(self) -> Any:
        """The service of the one debugger there is."""
        return self.debugger._instance.service

    def lines(self, name: str = "dispatch_log.jsonl") -> list[dict[str, Any]]:
        """All lines of all logs of a name below the dump folder, in order of the folders."""
        files = sorted(self.root.glob(f"*/{name}"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def dump(self, path: str) -> list[str]:
        """The entries of one dump, by the path its line gives."""
        entries: list[str] = json.loads((self.root / path / "dump.json").read_text())["data"]
        return entries

    def rank_folders(self) -> list[str]:
        """Every rank folder below the dump folder."""
        found = (folder for folder in self.root.glob("**/*rank*") if folder.is_dir())
        return sorted(str(folder.relative_to(self.root)) for folder in found)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Process]:
    made = Process(monkeypatch, tmp_path)
    yield made
    for opened in session._open_sessions.values():
        if opened.log is not None:
            opened.log.close()
    made.restart()


@pytest.fixture
def refusal() -> Callable[[Callable[[], Any]], str]:
    """``refusal(call)``: the one line that ``call`` is refused with."""

    def refused(call: Callable[[], Any]) -> str:
        with pytest.raises(switches.CaptureError) as caught:
            call()
        text = str(caught.value)
        assert "\n" not in text
        return text

    return refused
