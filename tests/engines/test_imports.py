"""Every woven file of verl is imported, with the switch off and on, also those that no other test here runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NO_SOURCE
from tests.engines.training import DEMO, SWITCHES, check_out, unpack, weave_into
from train_infer_consistency.overlay.reading import load_upstreams

pytestmark = pytest.mark.engines
#: Needs megatron-core's newest pieces; test_verl_megatron.py runs it.
ELSEWHERE = "verl/workers/engine/megatron/transformer_impl.py"
#: The one that the published procedure names.
COMMIT = "b7dabd83ac7cf3bed84b06e9e29ae67e8542ee73"
CODE = """
import importlib, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    module = importlib.import_module(name)
    classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
    holders = [kind for kind in classes if "_consistency" in vars(kind)]
    found[name] = [module.__file__, sorted({str(kind._consistency is not None) for kind in holders})]
print(json.dumps(found))
"""


@pytest.fixture
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    if request.param == "0.8.0":
        unpack(request.getfixturevalue("release")("verl", "0.8.0"), "verl", folder)
    elif not check_out(request.getfixturevalue("source")("verl"), request.param, "verl", folder):
        pytest.skip(NO_SOURCE)
    return weave_into(folder, "verl")


@pytest.mark.parametrize(
    ("tree", "switch", "on"), [("0.8.0", "", False), ("0.8.0", "1", True), (COMMIT, "1", True)], indirect=["tree"]
)
def test_woven_files_of_verl_are_imported(switch: str, on: bool, tree: Path, tmp_path: Path) -> None:
    paths = [file.path for file in load_upstreams()["verl"].files if file.path != ELSEWHERE]
    names = [path.removesuffix(".py").replace("/", ".") for path in paths]
    environment = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    environment |= {"PYTHONPATH": os.pathsep.join([str(tree), str(DEMO)]), "DUMP_ON": switch, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CODE, json.dumps(names)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for path, name in zip(paths, names, strict=True):
        file, switched = found[name]
        assert Path(file) == tree / path
        assert switched in ([], [str(on)])
    holders = [name for name, (_, switched) in found.items() if switched]
    assert len(holders) >= 4, "the classes that carry the switch"
