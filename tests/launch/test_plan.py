"""``consistency plan``: what it writes is accepted by its own check, by bash and by shellcheck; what it refuses."""

from __future__ import annotations

import itertools
import json
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_infer_consistency.cli.main import main
from train_infer_consistency.errors import EvidenceError, UsageError
from train_infer_consistency.launch import inputs, stacks
from train_infer_consistency.launch.check import Report, check
from train_infer_consistency.launch.planning import msprobe_files, script, slime, text, verl
from train_infer_consistency.launch.planning.answers import make_answers, read_answers
from train_infer_consistency.launch.planning.costs import estimate
from train_infer_consistency.launch.planning.setting import Given, hydra, shell
from train_infer_consistency.launch.run import SCENARIOS

from .plans import KINDS, arguments, plan_into, shellcheck

BASE: dict[str, Any] = {"model": "/models/m", "world_size": 8, "dump_root": "/data/dumps"}
REQUIRED = ("--model", "/models/m", "--world-size", "8", "--dump-root", "/data/dumps")


def checked(folder: Path) -> Report:
    return check(*inputs.read([str(folder)]))


def codes(report: Report) -> set[str]:
    return {finding.rule.code for finding in report.findings}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", KINDS)
def test_check_has_nothing_to_say_of_a_plan(kind: str, language: str, tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", language, **KINDS[kind])
    report = checked(tmp_path / "plan")
    assert report.runs[0].scenario == plan.answers.scenario
    assert report.runs[0].stack == plan.answers.versions
    assert (report.findings, report.unread, report.status) == ([], [], 0)
    assert len(report.applied) > 40
    assert all(one.target for one in report.unchecked)
    assert {file.side for file in report.runs[0].msprobe} == {"generate", "actor"}


def test_all_scenarios_and_stacks_are_planned() -> None:
    assert {kind["scenario"] for kind in KINDS.values()} == set(SCENARIOS)
    assert {make_answers(BASE | kind).stack for kind in KINDS.values()} == set(stacks.STACKS)


@pytest.mark.parametrize("choice", [{"tensors": True}, {"md5": True}, {"world_size": 32, "per_node": 16}])
@pytest.mark.parametrize("kind", ["hybrid", "fully async", "slime"])
def test_options_keep_the_rules(kind: str, choice: dict[str, Any], tmp_path: Path) -> None:
    plan_into(tmp_path / "plan", **KINDS[kind], **choice)
    report = checked(tmp_path / "plan")
    assert (codes(report), report.status) == (set(), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_shells_take_the_script(kind: str, language: str, tmp_path: Path) -> None:
    plan_into(tmp_path / "plan", language, model="/models/it's 5", **KINDS[kind])
    run = tmp_path / "plan" / "run.sh"
    assert run.stat().st_mode & stat.S_IXUSR
    for command in (["bash", "-n"], [str(shellcheck())]):
        done = subprocess.run([*command, str(run)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("kind", KINDS)
def test_own_arguments_come_before_what_the_capture_needs(kind: str, tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", **KINDS[kind])
    words = arguments(tmp_path / "plan", "mine=a b", "$x")
    at = words.index("mine=a b")
    assert words[at + 1] == "$x"
    last = words[at + 2 :]
    if plan.answers.scenario == "slime":
        assert last[:4] == ["--num-rollout", "1", "--start-rollout-id", "0"]
        assert "--advantage-estimator" in words[:at]
        assert words[words.index("--runtime-env") + 1] == f"{plan.folder}/runtime_env.json"
        return
    assert "algorithm.adv_estimator=grpo" in words[:at]
    assert words[1] == verl.MODULES[plan.answers.scenario]
    given = dict(word.split("=", 1) for word in last)
    variables = json.loads((tmp_path / "plan" / "runtime_env.json").read_text())["env_vars"]
    prefix = "+ray_kwargs.ray_init.runtime_env.env_vars."
    handed = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    assert {name: value.strip("'") for name, value in handed.items()} == variables
    assert handed["DUMP_ON"] == "'1'"  # a text to Hydra, because Ray refuses a number


def test_a_second_run_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "dumps"
    plan_into(tmp_path / "plan", scenario="verl-hybrid", dump_root=str(root))
    (root / "update_actor").mkdir(parents=True)
    with pytest.raises(subprocess.CalledProcessError) as raised:
        arguments(tmp_path / "plan")
    assert raised.value.returncode == 2
    assert f"{root}/update_actor is there already" in raised.value.stderr
    assert not (root / "plan.toml").exists()


@pytest.mark.parametrize("kind", ["hybrid", "slime"])
def test_the_plan_lies_beside_its_dumps(kind: str, tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", **KINDS[kind], dump_root=str(tmp_path / "new" / "dumps"))
    arguments(tmp_path / "plan")
    copied = tmp_path / "new" / "dumps" / "plan.toml"
    assert copied.read_text() == plan.files["plan.toml"]
    assert tomllib.loads(copied.read_text())["folder"] == str(tmp_path / "plan")


@pytest.mark.parametrize("kind", ["hybrid", "slime"])
def test_msprobe_files(kind: str, tmp_path: Path) -> None:
    plan_into(tmp_path / "plan", **KINDS[kind])
    generate, actor = (
        json.loads((tmp_path / "plan" / f"config_{side}.json").read_text()) for side in ("generate", "actor")
    )
    if kind == "slime":
        assert (generate["dump_path"], actor["dump_path"]) == ("/data/dumps/generate", "/data/dumps")
        assert all(one["level"] == "mix" and one["step"] == [0] and one["extra_info"] for one in (generate, actor))
    else:
        assert (generate["dump_path"], actor["dump_path"]) == (
            "/data/dumps/generate_sequence",
            "/data/dumps/update_actor",
        )
        assert all(one["level"] == "L0" and one["step"] == [] for one in (generate, actor))
    for one in (generate, actor):
        assert one["task"] == "statistics"
        assert one["statistics"]["summary_mode"] == "statistics"
        assert one["rank"] == []
        assert not {"precision", "dump_enable"} & {*one, *one["statistics"]}


def test_checksums_and_tensors_on_request() -> None:
    md5 = msprobe_files.configuration(make_answers(BASE | KINDS["hybrid"] | {"md5": True}), "actor")
    assert md5["statistics"]["summary_mode"] == "md5"
    tensors = msprobe_files.configuration(make_answers(BASE | KINDS["slime"] | {"tensors": True}), "actor")
    assert tensors["task"] == "tensor"
    assert "statistics" not in tensors
    assert tensors["tensor"]["data_mode"] == ["all"]


@pytest.mark.parametrize("kind", ["hybrid", "slime 0.2.4"])
def test_variables(kind: str, tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", **KINDS[kind])
    found = json.loads((tmp_path / "plan" / "runtime_env.json").read_text())["env_vars"]
    assert all(isinstance(value, str) for value in found.values())
    common = {"DUMP_ON": "1", "PROMPTS_ONLY": "1", "TORCHDYNAMO_DISABLE": "1", "MSPROBE_SEED": "1234"}
    assert common.items() <= found.items()
    assert found["CONSISTENCY_RUN_ID"] == "t"
    assert found["MSPROBE_CONFIG_PATH"] == f"{plan.folder}/config_actor.json"
    if kind == "hybrid":
        assert found["CONSISTENCY_KEEP_ENDS"] == "1"
        assert found["DUMP_PHASE"] == "log_prob"
        assert "SGLANG_MSPROBE_DUMP" not in found
    else:
        assert found["SGLANG_MSPROBE_DUMP"] == "1"
        assert found["MSPROBE_MIN_DUMP_TOKENS"] == "2"
        assert found["MSPROBE_GENERATE_CONFIG"] == f"{plan.folder}/config_generate.json"


@given(
    tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2]), cp=st.sampled_from([1, 2]), dp=st.sampled_from([1, 2, 8])
)
def test_sizes_of_slime(tp: int, pp: int, cp: int, dp: int) -> None:
    sizes = {"tp": tp, "pp": pp, "cp": cp, "world_size": tp * pp * cp * dp}
    answers = make_answers(BASE | {"scenario": "slime"} | sizes)
    flags = {name: value for group in slime.after(answers, "/c.json") for name, value in group.settings.items()}
    assert answers.dp == dp == flags["--n-samples-per-prompt"] == flags["--global-batch-size"]
    assert flags["--actor-num-nodes"] * flags["--actor-num-gpus-per-node"] == answers.world_size
    assert flags["--rollout-num-gpus-per-engine"] == tp * pp == flags["--rollout-num-gpus"]
    assert flags["--sglang-chunked-prefill-size"] > answers.prompt_length


def test_long_prompts_get_a_larger_chunk() -> None:
    answers = make_answers(BASE | {"scenario": "slime", "prompt_length": 20000})
    assert slime.chunk_size(answers) == 32768
    attention = {"dp_attention": True, "allow_dp_attention": True}
    assert slime.chunk_size(make_answers(BASE | {"scenario": "slime", "prompt_length": 16000} | attention)) == 131072


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"scenario": "slime", "cp": 2}, "S111"),
        ({"scenario": "verl-hybrid", "engine": "megatron", "cp": 2}, "V221"),
        ({"scenario": "slime", "dp_attention": True, "allow_dp_attention": True}, "S209"),
    ],
)
def test_what_was_asked_for_against_the_rules_is_warned_of(given: dict[str, Any], code: str, tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", **given)
    assert len(plan.warnings) == 1
    assert plan.warnings[0] in plan.files["README.md"]
    assert code in codes(checked(tmp_path / "plan"))


def test_shards_are_planned_with_a_note_alone(tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", scenario="slime", tp=2)
    report = checked(tmp_path / "plan")
    assert report.status == 0
    assert not report.broken
    assert "multiple of 2" in plan.warnings[0]


def test_sglang_with_a_switch_of_its_own(tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", scenario="slime", stack="slime=0.2.4,sglang=0.5.11,mindstudio-probe=26.2.0")
    words = arguments(tmp_path / "plan")
    assert words[words.index("--sglang-msprobe-dump-config") + 1] == f"{plan.folder}/config_generate.json"
    assert "SGLANG_MSPROBE_DUMP" not in plan.files["runtime_env.json"]
    assert json.loads(plan.files["config_generate.json"])["step"] == []
    assert json.loads(plan.files["config_actor.json"])["step"] == [0]
    assert "step 0 is the health probe" in plan.warnings[0]
    assert "stepN" in plan.files["README.md"]
    report = checked(tmp_path / "plan")
    assert (codes(report), report.status) == (set(), 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"world_size": 6, "tp": 4}, "cannot be divided by TP*PP*CP = 4"),
        ({"world_size": 12}, "no multiple of --per-node 8"),
        ({"world_size": 32, "tp": 16, "per_node": 8}, "does not fit a node of 8"),
        ({"world_size": -8}, "--world-size -8 is less than 1"),
        ({"prompt_length": 0}, "--prompt-length 0 is less than 1"),
        ({"dump_root": "dumps"}, "no absolute path"),
        ({"dump_root": "/"}, "no absolute path"),
        ({"dump_root": "/d/../"}, "has a part . or .."),
        ({"dump_root": "/./d"}, "has a part . or .."),
        ({"dump_root": "/data/my dumps"}, "msprobe refuses"),
        ({"dump_root": "/data/数据"}, "msprobe refuses"),
        ({"stack": "verl-9"}, "no stack 'verl-9'"),
        ({"stack": "slime-0.2.4"}, "has no verl"),
        ({"stack": "verl=0.9.1"}, "no overlays for verl 0.9.1"),
        ({"engine": "veomni"}, "no engine 'veomni'"),
        ({"pp": 2}, "FSDP has no pipeline"),
        ({"cp": 2}, "FSDP has no pipeline"),
        ({"scenario": "verl-fully-async", "engine": "fsdp"}, "only FSDP2 can give"),
        ({"scenario": "slime", "dp_attention": True}, "with DP attention SGLang's MLP"),
        ({"dp_attention": True, "allow_dp_attention": True}, "is of SGLang"),
        ({"scenario": "slime", "stack": "slime=0.3.1,sglang=0.5.12"}, "no overlays for slime 0.3.1"),
        ({"tensors": True, "md5": True}, "--tensors dumps none"),
        ({"run_id": "a b"}, "--run-id a b"),
        ({"model": "/m\n"}, "--model holds"),
        ({"model": ""}, "not answered: --model"),
        ({"scenario": "verl"}, "no scenario 'verl'"),
    ],
)
def test_answers_that_no_run_can_come_of(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        make_answers(BASE | {"scenario": "verl-hybrid"} | given)
    assert raised.value.mend
    assert "\n" not in str(raised.value)


def test_a_refused_plan_leaves_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "slime", "--model", "m", "--world-size", "6", "--tp", "4", "--dump-root", "/d", "-o", "p"]
    for refused in (arguments, ["plan", "verl", *REQUIRED], ["plan", "slime", *REQUIRED, "--stack", "none"]):
        assert main(refused) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_only_three_answers_are_required(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "verl-hybrid", *REQUIRED]) == 0
    assert (here / "verl-hybrid-plan" / "run.sh").exists()
    assert "takes 8 cards" in capsys.readouterr().out
    assert main(["plan", "verl-hybrid", *REQUIRED[2:]]) == 2
    assert "not answered: --model" in capsys.readouterr().err


def test_a_folder_that_is_not_empty_is_left_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "plan").mkdir()
    assert main(["plan", "slime", *REQUIRED, "-o", "plan"]) == 0
    before = {path.name: path.read_bytes() for path in (here / "plan").iterdir()}
    assert main(["plan", "verl-hybrid", *REQUIRED, "-o", "plan"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (here / "plan").iterdir()} == before
    (here / "file").touch()
    assert main(["plan", "slime", *REQUIRED, "-o", "file"]) == 2


def test_a_plan_is_there_whole_or_not_at_all(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def full(self: Path, *args: Any, **named: Any) -> int:
        if self.name == "run.sh":
            raise OSError(28, "No space left on device")
        return real(self, *args, **named)

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["plan", "slime", *REQUIRED, "-o", "plan"]) == 4
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("output", ["my plan", "dumps/generate/plan"])
def test_places_that_a_plan_cannot_have(output: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--model", "m", "--world-size", "1", "--dump-root", str(here / "dumps")]
    assert main(["plan", "slime", *root, "-o", output]) == 2
    assert "-o" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_plan_can_be_made_again_from_its_toml(here: Path) -> None:
    own = ["--prompt-length", "77", "--md5", "--stack", "slime-0.2.4", "--tp", "2", "--run-id", "x"]
    assert main(["plan", "slime", *REQUIRED, *own, "-o", "a"]) == 0
    made = tomllib.loads((here / "a" / "plan.toml").read_text())
    assert made["scenario"] == "slime"
    assert made["versions"]["sglang"] == "0.5.10.post1"
    assert made["run_id"] == "x"
    assert main(["plan", "slime", "--answers", "a/plan.toml", "--run-id", "x", "-o", "b"]) == 0
    for path in (here / "a").iterdir():
        other = here / "b" / path.name
        assert other.read_text() == path.read_text().replace(f"{here}/a", f"{here}/b")
    assert main(["plan", "verl-hybrid", "--answers", "a/plan.toml", "-o", "c"]) == 2
    assert main(["plan", "slime", "--answers", "a/plan.toml", "--prompt-length", "5", "-o", "d"]) == 0
    again = tomllib.loads((here / "d" / "plan.toml").read_text())
    assert again["answers"]["prompt-length"] == 5
    assert again["run_id"] != "x"


def test_a_file_of_answers(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('model = "m"\nworld-size = 2\ndump-root = "/d"\nmd5 = true\n')
    assert read_answers(file) == {"model": "m", "world_size": 2, "dump_root": "/d", "md5": True}
    for content, said in (
        ("card = 1", "card is no answer"),
        ('tp = "2"', "no whole number"),
        ("tp = true", "no whole"),
        ("answers = 3", "answers is no table"),
        ("[[answers]]\ntp = 1", "answers is no table"),
    ):
        file.write_text(content)
        with pytest.raises(UsageError, match=said):
            read_answers(file)
    file.write_text("tp = " + "[" * 3000)
    with pytest.raises(EvidenceError, match="no valid TOML"):
        read_answers(file)
    file.write_text("tp = ")
    with pytest.raises(EvidenceError, match="no valid TOML"):
        read_answers(file)
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_answers(tmp_path / "none")


def test_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "verl-fully-async", *REQUIRED, "--tp", "2", "-o", "plan", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(here / "plan")
    assert told["cards"] == 10
    assert sorted(told["files"]) == sorted(path.name for path in (here / "plan").iterdir())
    assert told["costs"]["files"] == 3 * (told["costs"]["generate_dumps"] + told["costs"]["actor_dumps"])
    assert "CPU" in told["costs"]["source"]


def test_costs_follow_what_was_measured(tmp_path: Path) -> None:
    hybrid = make_answers(BASE | {"scenario": "verl-hybrid"})
    costs = estimate(hybrid)
    assert (costs.prompts, costs.generate_dumps, costs.actor_dumps, costs.assumed) == (8, 8, 8, True)
    assert costs.size == 16 * 864_000
    assert costs.factor == 1.6
    assert costs.seconds == 0.7
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 24, "hidden_size": 128}')
    half = estimate(make_answers(BASE | {"scenario": "verl-hybrid", "model": str(tmp_path)}))
    assert half.size == costs.size / 2
    assert not half.assumed
    tensors = {"scenario": "slime", "tensors": True, "prompt_length": 128}
    one, two = (
        estimate(make_answers(BASE | tensors | {"model": str(tmp_path), "prompt_length": n})) for n in (64, 128)
    )
    assert two.size == 2 * one.size
    assert two.seconds is None


def test_every_setting_says_why_in_both_languages() -> None:
    found: list[Given] = []
    for kind, tp in itertools.product(KINDS.values(), (1, 2)):
        answers = make_answers(BASE | kind | {"tp": tp})
        module: Any = slime if answers.scenario == "slime" else verl
        more = () if module is slime else ({"A": "1"},)
        found += [*module.before(answers), *module.after(answers, "/c.json", *more)]
    assert len(found) > 100
    for one in found:
        assert re.search("[a-z].*[^.]$", one.en)
        assert re.search("[\u4e00-\u9fff]", one.zh)
    for pair in (*script._SENTENCES.values(), *text._WARNINGS.values()):
        assert len(pair) == 2
        assert re.search("[\u4e00-\u9fff]", pair[1])


@pytest.mark.parametrize(
    ("given", "prompts", "nodes"),
    [
        ({"scenario": "verl-hybrid"}, "8 prompts", None),
        ({"scenario": "verl-hybrid", "world_size": 16}, "16 prompts", "2 nodes or more (16 cards, 8 a node)"),
        ({"scenario": "verl-fully-async"}, "16 prompts", "2 nodes or more (9 cards, 8 a node)"),
        ({"scenario": "verl-fully-async", "world_size": 4}, "8 prompts", None),
        ({"scenario": "slime", "world_size": 4}, "1 prompt", None),
    ],
)
def test_readme_says_what_has_to_be_there(
    given: dict[str, Any], prompts: str, nodes: str | None, tmp_path: Path
) -> None:
    readme = plan_into(tmp_path / "plan", **given).files["README.md"]
    assert f"The data needs {prompts} or more of at most 1024 tokens" in readme
    assert ("Ray has to run on" in readme) == (nodes is not None)
    assert nodes is None or nodes in readme


def test_everything_of_a_chinese_plan_is_chinese(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "slime", *REQUIRED, "-o", "plan", "--lang", "zh"]) == 0
    said = capsys.readouterr().out
    script = (here / "plan" / "run.sh").read_text()
    assert "README.zh-CN.md" in script
    comments = [line for line in script.splitlines()[1:] if line.lstrip().startswith("#") or "echo" in line]
    for line in [*comments, *said.splitlines()[1:]]:
        assert re.search("[\u4e00-\u9fff]", line), line


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_readme_names_what_to_do(kind: str, language: str, tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", language, **KINDS[kind])
    readme = plan.files["README.md" if language == "en" else "README.zh-CN.md"]
    assert bool(re.search("[\u4e00-\u9fff]", readme)) == (language == "zh")
    for word in ("consistency doctor", "consistency pairs", "consistency compare", "plan.toml", "run.sh", "run.log"):
        assert word in readme
    for folder in msprobe_files.folders(plan.answers).values():
        assert folder in readme
    assert "{" not in readme.replace("${MODEL_ARGS[@]}", "")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_a_shell_reads_back_every_word(word: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf %s {shell(word)}"], capture_output=True, check=True)
    assert done.stdout.decode() == word


def test_texts_that_hydra_would_read_otherwise_are_quoted() -> None:
    assert hydra("a", True) == "a=True"
    assert hydra("a", None) == "a=null"
    assert hydra("a", 3) == "a=3"
    assert hydra("a", "vllm") == "a=vllm"
    assert hydra("a", "/m/Qwen2-7B") == "a=/m/Qwen2-7B"
    assert hydra("a", "1e5") == "a='1e5'"
    assert hydra("a", "True") == "a='True'"
    assert hydra("a", "it's") == 'a="it\'s"'
