"""A storage and bases for one run of `make image-test`: each is made once, and all of it is gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from train_infer_consistency.overlay.lock import load_lock

from ..conftest import NO_SOURCE, ROOT
from .standin import Form, Storage, Tree


def named(*items: str) -> dict[str, str]:
    """Read ``name version`` words."""
    return {item.split()[0]: item.split()[1] for item in items}


#: What the stacks' bases hold besides the edited upstreams: the facts of VERSIONS.lock, and what msprobe imports.
MSPROBE = named(
    *("einops 0.8.1", "matplotlib 3.9.4", "numpy 1.26.0", "pandas 2.3.3", "pytz 2025.2"),
    *("pyyaml 6.0.3", "tensorboard 2.20.0", "tqdm 4.67.1"),
)
NAMED = {
    "verl-0.8": named(
        *("vllm 0.18.0", "torch 2.9.0", "torch-npu 2.9.0.post2", "triton-ascend 3.2.1"),
        *("transformers 5.3.0.dev0", "tensordict 0.10.0"),
    ),
    "slime-0.2.2": named(
        *("torch 2.8.0", "torch-npu 2.8.0", "triton-ascend 3.2.0", "transformers 4.57.1", "sgl-kernel-npu 2026.02.01")
    ),
    "slime-0.2.4": named(
        *("torch 2.8.0", "torch-npu 2.8.0.post2", "triton-ascend 3.2.0", "transformers 5.3.0"),
        "sgl-kernel-npu 2026.4.15rc3",
    ),
}
#: For the facts that are commits: what pip leaves of an installation from git.
FROM_GIT = {
    "megatron-core": ("0.16.0rc0", "Megatron-LM"),
    "mindspeed": ("0.12.1", "MindSpeed"),
    "mbridge": ("0.15.1",) * 2,
}


@pytest.fixture(scope="session")
def storage() -> Iterator[Storage]:
    """An empty storage in the folder for temporary files (TMPDIR), where it takes up to 2 GB."""
    missing = [f"{program} (Debian package {program})" for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.exit(f"not installed: {', '.join(missing)}; apt install {' '.join(PROGRAMS)}", returncode=3)
    root = Path(tempfile.mkdtemp(prefix="image-test-"))
    try:
        made = Storage(root)
        made.python()
        yield made
    finally:
        shutil.rmtree(root)


PROGRAMS = ("buildah", "skopeo", "mmdebstrap")
Bases = Callable[[str, Form], str]


@pytest.fixture(scope="session")
def base(storage: Storage, release: Callable[..., Path]) -> Bases:
    """``base(stack, form)``: the name of a stand-in base with the stack's own, pristine upstreams."""
    made: dict[tuple[str, Form], str] = {}

    def get(stack: str, form: Form) -> str:
        if (stack, form) not in made:
            name = f"{stack}-{form}".replace(".", "-")
            tree = Tree(storage.root / name / "tree")
            _upstreams(tree, stack, form, release)
            tree.wheel(_packaging(), "site-packages")  # what compares versions has to be importable
            tree.named(MSPROBE | NAMED[stack])
            made[stack, form] = storage.base(name, tree)
        return made[stack, form]

    return get


def _upstreams(tree: Tree, stack: str, form: Form, release: Callable[..., Path]) -> None:
    if stack == "verl-0.8":
        tree.wheel(release("verl", "0.8.0"), form)
        tree.wheel(release("vllm-ascend", "0.18.0"), form)
        return
    source, pins = given_source("slime"), load_lock().stacks[stack].pins
    tree.wheel(release("sglang", pins["sglang"]), form)
    tree.checkout("slime", source, str(load_lock().pin("slime", pins["slime"]).commit))
    facts = {fact.distribution: fact.value for fact in load_lock().stacks[stack].facts if fact.match == "commit"}
    for distribution, (version, project) in FROM_GIT.items():
        tree.named({distribution: version}, commit=facts[distribution], project=project)


def given_source(name: str) -> Path:
    """The checkout that ``SOURCE_<name>`` names; without one the test is skipped and listed."""
    given = os.environ.get(f"SOURCE_{name}")
    if not given:
        pytest.skip(NO_SOURCE)
    return Path(given).expanduser()


def _packaging() -> Path:
    from train_infer_consistency.wheels.registry import fetch_artifact

    (line,) = [
        line
        for line in (ROOT / "requirements" / "tools.txt").read_text().splitlines()
        if line.startswith("packaging==")
    ]
    requirement, _, sha256 = line.partition(" --hash=sha256:")
    return fetch_artifact(requirement, f"{requirement.replace('==', '-')}-py3-none-any.whl", sha256)
