"""Rules of how msprobe is switched on in slime's SGLang: by the capture, or from 0.5.11 on by SGLang itself."""

from __future__ import annotations

from .. import defaults
from ..rule import (
    ERROR,
    OUT,
    WARNING,
    Found,
    Rule,
    drop_flag,
    drop_variable,
    set_flag,
    set_msprobe,
    set_variable,
    within,
)
from ..run import SLIME, Run
from .settings import slime_example, switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rule import Answer

_ONLY = (SLIME,)
_NATIVE = ">=0.5.11"


def _version(run: Run) -> str:
    return run.stack.get("sglang", "")


def _switched_on(run: Run) -> Answer:
    native = defaults.slime(run, "sglang_msprobe_dump_config")
    if not _version(run):
        return OUT
    if within(_version(run), _NATIVE):
        if native:
            return None
        if not switch(run, "DUMP_ON") and not switch(run, "SGLANG_MSPROBE_DUMP"):
            return OUT
        mend = set_flag("--sglang-msprobe-dump-config", "/path/to/config_generate.json")
        return Found(run.where("SGLANG_MSPROBE_DUMP"), mend, way="--sglang-msprobe-dump-config", version=_version(run))
    if native:
        drop = drop_flag("--sglang-msprobe-dump-config")
        mends = (set_variable("SGLANG_MSPROBE_DUMP", "1"), drop)
        return Found(
            run.where("sglang_msprobe_dump_config"), *mends, way="SGLANG_MSPROBE_DUMP=1", version=_version(run)
        )
    if not switch(run, "DUMP_ON") or switch(run, "SGLANG_MSPROBE_DUMP"):
        return None if switch(run, "SGLANG_MSPROBE_DUMP") else OUT
    mend = set_variable("SGLANG_MSPROBE_DUMP", "1")
    return Found(run.where("SGLANG_MSPROBE_DUMP", "DUMP_ON"), mend, way="SGLANG_MSPROBE_DUMP=1", version=_version(run))


def _both_ways(run: Run) -> Answer:
    if not defaults.slime(run, "sglang_msprobe_dump_config"):
        return OUT
    if not switch(run, "SGLANG_MSPROBE_DUMP"):
        return None
    return Found(run.where("SGLANG_MSPROBE_DUMP"), drop_variable("SGLANG_MSPROBE_DUMP"))


def _probe(run: Run) -> Answer:
    if not defaults.slime(run, "sglang_msprobe_dump_config"):
        return OUT
    file = run.msprobe_of("generate")
    if file is None:
        return OUT
    steps = file.content.get("step", [])
    if steps != [0]:
        return None
    return Found(file.at("step"), set_msprobe(file.origin.file, "step", "[]"))


RULES = (
    Rule(
        "S213",
        ERROR,
        _ONLY,
        _switched_on,
        fact="SGLang has msprobe of its own from 0.5.11 on (--msprobe-dump-config); before, the capture reads "
        "SGLANG_MSPROBE_DUMP",
        en="SGLang {version} is switched on by {way}",
        zh="SGLang {version} 通过 {way} 开启 dump",
        good="export DUMP_ON=1 SGLANG_MSPROBE_DUMP=1\npython3 train.py --num-rollout 1",
        bad="--sglang-msprobe-dump-config /d/config_generate.json",
    ),
    Rule(
        "S214",
        WARNING,
        _ONLY,
        _both_ways,
        needs={"sglang": _NATIVE},
        fact="SGLang 0.5.11 dumps by itself; SGLANG_MSPROBE_DUMP belongs to the capture of older versions",
        en="SGLANG_MSPROBE_DUMP is set beside --sglang-msprobe-dump-config, and does nothing here",
        zh="同时设置了 SGLANG_MSPROBE_DUMP 与 --sglang-msprobe-dump-config，前者在此不起作用",
        good=slime_example("slime=0.2.4,sglang=0.5.11", "--sglang-msprobe-dump-config /d/config_generate.json"),
        bad={
            **slime_example("slime=0.2.4,sglang=0.5.11", ""),
            "run.sh": "export SGLANG_MSPROBE_DUMP=1\n"
            "python3 train.py --num-rollout 1 --sglang-msprobe-dump-config /d/config_generate.json",
        },
    ),
    Rule(
        "S215",
        ERROR,
        _ONLY,
        _probe,
        needs={"sglang": _NATIVE},
        fact="SGLang 0.5.11 steps at every forward, and its health probe is the first one, before the weights are synced",
        en='"step": [0] is the health probe here, not the prompt; dump all steps and choose the prompt\'s',
        zh='此处 "step": [0] 是健康探测而不是 prompt；请采集所有 step 再选择 prompt 所在的一步',
        good=slime_example(
            "slime=0.2.4,sglang=0.5.11",
            "--sglang-msprobe-dump-config config_generate.json",
            config_generate_json='{"task": "statistics", "dump_path": "/d/generate", "step": [], "level": "mix"}',
        ),
        bad=slime_example(
            "slime=0.2.4,sglang=0.5.11",
            "--sglang-msprobe-dump-config config_generate.json",
            config_generate_json='{"task": "statistics", "dump_path": "/d/generate", "step": [0], "level": "mix"}',
        ),
    ),
)
