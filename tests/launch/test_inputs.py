"""What a user has becomes runs: scripts, command lines, msprobe files, runtime_env, configurations, plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train_infer_consistency.launch.inputs import DUMP_CONFIG, named, read
from train_infer_consistency.launch.run import (
    EXPORT,
    RAY_KWARGS,
    RUNTIME_ENV,
    SHELL,
    SLIME,
    VERL_FULLY_ASYNC,
    VERL_HYBRID,
    Run,
    UnknownValueError,
)

MSPROBE = {"task": "statistics", "dump_path": "/d/generate", "rank": [], "step": [], "level": "L0"}


def run_of(folder: Path, text: str, name: str = "run.sh", **files: str) -> Run:
    for other, content in files.items():
        (folder / other.replace("__", ".")).write_text(content, encoding="utf-8")
    path = folder / name
    path.write_text(text, encoding="utf-8")
    (run,) = read([str(path)])
    return run


def said(run: Run) -> list[str]:
    return [str(text) for _, text in run.unread]


@pytest.mark.parametrize(
    ("text", "scenario"),
    [
        ("python3 -m verl.trainer.main_ppo a=1", VERL_HYBRID),
        ("nohup python -u -m verl.trainer.main_ppo a=1 > log 2>&1 &", VERL_HYBRID),
        ("HYDRA_FULL_ERROR=1 python3.11 verl/trainer/main_ppo.py a=1", VERL_HYBRID),
        ("$PYTHON -m verl.trainer.main_ppo a=1", VERL_HYBRID),
        ("ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo a=1", VERL_HYBRID),
        ("bash -c 'cd /x && python3 -m verl.trainer.main_ppo a=1'", VERL_HYBRID),
        ("python -m verl.experimental.fully_async_policy.fully_async_main a=1", VERL_FULLY_ASYNC),
        ("python -m recipe.fully_async_policy.fully_async_main a=1", VERL_FULLY_ASYNC),
        ("python3 train.py --lr 1", SLIME),
        ("ray job submit --address=x -- python3 train_async.py --lr 1", SLIME),
        ("env A=1 python3 /root/slime/train.py --lr 1", SLIME),
    ],
)
def test_commands_that_start_a_run(tmp_path: Path, text: str, scenario: str) -> None:
    run = run_of(tmp_path, text)
    assert run.scenario == scenario
    assert run.unread == []
    assert run.hydra or run.slime


@pytest.mark.parametrize(
    "text",
    ["python train.py", "echo python3 x", "", "ls -l"],
)
def test_a_script_without_such_a_command_says_so(tmp_path: Path, text: str) -> None:
    run = run_of(tmp_path, text)
    assert run.scenario == ""
    assert said(run) == ["holds no command that starts verl's main_ppo or fully_async_main, or slime's train.py"]


def test_several_commands_are_several_runs(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python3 -m verl.trainer.main_ppo a=1\npython3 train.py --lr 1\n", encoding="utf-8")
    assert [run.scenario for run in read([str(path)])] == [VERL_HYBRID, SLIME]


def test_settings_know_where_they_stand(tmp_path: Path) -> None:
    run = run_of(tmp_path, 'ARGS=(\n  a.b=1\n)\npython3 -m verl.trainer.main_ppo \\\n  c=2 \\\n  "${ARGS[@]}"\n')
    assert (run.where("a.b").line, run.where("c").line, run.where("gone").line) == (2, 5, 4)


def test_scopes_of_variables(tmp_path: Path) -> None:
    text = (
        'LEFT=1\nexport SEEN=1\nBOTH=1 ray job submit --runtime-env-json=\'{"env_vars": {"JOB": "a"}}\' -- '
        "python3 -m verl.trainer.main_ppo +ray_kwargs.ray_init.runtime_env.env_vars.KW=b\n"
    )
    run = run_of(tmp_path, text)
    found = {name: settings[-1].scope for name, settings in run.env.items()}
    assert found == {"LEFT": SHELL, "SEEN": EXPORT, "BOTH": EXPORT, "JOB": RUNTIME_ENV, "KW": RAY_KWARGS}
    assert run.submitted


def test_a_runtime_env_in_pieces(tmp_path: Path) -> None:
    text = (
        'JSON="{\n  \\"env_vars\\": {\n    \\"A\\": \\"1\\",\n    \\"B\\": \\"${HOST}\\"\n  }\n}"\n'
        'ray job submit --runtime-env-json="${JSON}" -- python3 train.py --lr 1\n'
    )
    run = run_of(tmp_path, text)
    assert run.variable("A") == "1"
    with pytest.raises(UnknownValueError):
        run.variable("B")
    assert said(run_of(tmp_path, text.replace('1\\",', '1\\"'))) != []
    unknown = 'ray job submit --runtime-env-json="$(jq . x)" -- python3 train.py --lr 1\n'
    assert said(run_of(tmp_path, unknown)) == ["runtime_env is unknown here: $(jq . x)"]


def test_a_runtime_env_in_a_file(tmp_path: Path) -> None:
    text = 'ray job submit --runtime-env-json="$(cat env.json)" -- python3 train.py --lr 1\n'
    assert run_of(tmp_path, text, env__json='{"env_vars": {"A": "1"}}').variable("A") == "1"
    assert said(run_of(tmp_path, "ray job submit --runtime-env gone.yaml -- python3 train.py --lr 1\n")) == [
        "gone.yaml is not here"
    ]


def test_msprobe_files_that_a_script_names_or_writes(tmp_path: Path) -> None:
    text = f"export MSPROBE_CONFIG_PATH={tmp_path}/actor.json\n"
    text += f"python3 -m verl.trainer.main_ppo +{DUMP_CONFIG}=/gone.json\n"
    run = run_of(tmp_path, text, actor__json=json.dumps(MSPROBE))
    assert [(file.side, file.path) for file in run.msprobe] == [("actor", f"{tmp_path}/actor.json")]
    assert [str(one) for one in run.target_only] == ["/gone.json: a file of the target machine"]
    written = (
        "cat > /home/g.json <<EOF\n"
        + json.dumps(MSPROBE)
        + f"\nEOF\npython3 -m verl.trainer.main_ppo +{DUMP_CONFIG}=/home/g.json\n"
    )
    run = run_of(tmp_path, written)
    assert [(file.side, file.origin.line) for file in run.msprobe] == [("generate", 1)]


def test_files_given_beside_a_script_are_matched_by_name(tmp_path: Path) -> None:
    key = DUMP_CONFIG.rpartition(".")[0]
    text = f"python3 -m verl.trainer.main_ppo '+{key}={{dump_config_path:\"/home/first.json\"}}'\n"
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    (tmp_path / "first.json").write_text(json.dumps(MSPROBE | {"dump_path": "/d/x"}), encoding="utf-8")
    (run,) = read([str(tmp_path / "first.json"), str(tmp_path / "run.sh")])
    assert named(run, "generate") == "/home/first.json"
    assert [(file.side, file.path) for file in run.msprobe] == [("generate", "/home/first.json")]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", "{", "is no valid JSON object"),
        ("a.json", "[]", "is no valid JSON object"),
        ("a.json", '{"x": 1}', "is neither an msprobe file nor a runtime_env"),
        ("a.toml", "=", "is no valid TOML (Invalid statement (at line 1, column 1))"),
        ("a.toml", "scenario = 'x'", "names no scenario of verl-hybrid, verl-fully-async, slime"),
        ("run.sh", "echo 'a", "' has no end"),
        ("run.sh", "python3 -m verl.trainer.main_ppo a=[1", "Hydra cannot read [1: ] is wrong or missing there"),
        ("run.sh", "python3 train.py x --lr 1", "x belongs to no flag"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, why: str) -> None:
    assert said(run_of(tmp_path, text, name))[0] == why


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    (run,) = read([str(tmp_path / "gone.sh")])
    assert said(run) == ["cannot be read: No such file or directory"]
    (run,) = read([str(tmp_path)])
    assert said(run) == ["holds no plan: no run.sh and no msprobe file"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"\xff\xfe\x00")
    (run,) = read([str(tmp_path / "run.sh")])
    assert said(run)[0] == "is no UTF-8 text"


def test_arguments_alone(tmp_path: Path) -> None:
    assert (
        run_of(tmp_path, "actor_rollout_ref.rollout.n=1 \\\n trainer.nnodes=2\n", "o.txt").override("trainer.nnodes")
        == 2
    )
    assert run_of(tmp_path, "--lr 1 \\\n --colocate\n", "o.args").flag("colocate") is True
    run = run_of(tmp_path, "trainer.nnodes=1 async_training.staleness_threshold=0\n", "o.txt")
    assert run.scenario == VERL_FULLY_ASYNC


def test_a_command_line() -> None:
    (run,) = read([], ["python3", "-m", "verl.trainer.main_ppo", "--config-name=mine", "a.b={c:'x y'}"])
    assert run.override("a.b.c") == "x y"
    assert run.override("--config-name") == "mine"
    (run,) = read([], ["--lr", "1"])
    assert run.scenario == SLIME


def test_a_dumped_configuration(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    content = {"actor_rollout_ref": {"rollout": {"enforce_eager": True}}, "trainer": {"nnodes": 1}}
    content["ray_kwargs"] = {"ray_init": {"runtime_env": {"env_vars": {"DUMP_ON": "1"}}}}
    run = run_of(tmp_path, yaml.safe_dump(content), "config.yaml")
    assert run.override("actor_rollout_ref.rollout.enforce_eager") is True
    assert run.scenario == VERL_HYBRID
    assert [one.scope for one in run.env["DUMP_ON"]] == [RAY_KWARGS]


def test_a_configuration_is_not_read_without_a_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    run = run_of(tmp_path, "actor_rollout_ref: {}\n", "config.yaml")
    assert said(run) == ["is not read: no YAML parser is installed here, or it is no YAML mapping"]


def test_a_plans_folder(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('scenario = "slime"\nstack = "slime-0.2.4"\n', encoding="utf-8")
    (tmp_path / "run.sh").write_text(
        'cd "$(dirname "$0")"\n'
        'ray job submit --runtime-env-json="$(cat runtime_env.json)" -- python3 train.py --lr 1\n',
        encoding="utf-8",
    )
    env = {
        "env_vars": {
            "MSPROBE_CONFIG_PATH": "/p/config_actor.json",
            "MSPROBE_GENERATE_CONFIG": "/p/config_generate.json",
        }
    }
    (tmp_path / "runtime_env.json").write_text(json.dumps(env), encoding="utf-8")
    for side in ("actor", "generate"):
        (tmp_path / f"config_{side}.json").write_text(json.dumps(MSPROBE), encoding="utf-8")
    (run,) = read([str(tmp_path / "plan.toml")])
    assert run.flag("lr") == 1
    (run,) = read([str(tmp_path)])
    assert run.unread == []
    assert run.stack["slime"] == "0.2.4"
    assert {file.side: file.path for file in run.msprobe} == {
        "actor": "/p/config_actor.json",
        "generate": "/p/config_generate.json",
    }


def test_a_missing_setting_may_be_in_an_unknown_word(tmp_path: Path) -> None:
    run = run_of(tmp_path, "python3 -m verl.trainer.main_ppo a=1 $EXTRA\n")
    assert run.override("a") == 1
    with pytest.raises(UnknownValueError):
        run.override("b", 2)
    assert run_of(tmp_path, 'python3 -m verl.trainer.main_ppo a=1 "$@"\n').override("b", 2) == 2


@pytest.mark.parametrize("name", ["verl.trainer.main_ppo_sync", "verl.experimental.one_step_off_policy.main_ppo"])
def test_another_trainer_is_named(tmp_path: Path, name: str) -> None:
    run = run_of(tmp_path, f"python3 -m {name} trainer.balance_batch=False")
    assert run.scenario == ""
    assert said(run) == [
        f"{name} is neither main_ppo nor fully_async_main: its step has no prompt-only pass, and no rule was tried"
    ]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("bash <<EOF\npython3 -m verl.trainer.main_ppo a=1\nEOF\n", "bash"),
        ("ssh host <<'EOF'\npython3 train.py --lr 1\nEOF\n", "ssh"),
        ("ssh host 'cd /x && python3 -m verl.trainer.main_ppo a=1'\n", "ssh"),
        ("docker exec c /bin/bash -lc 'python3 train_async.py --lr 1'\n", "docker"),
    ],
)
def test_a_run_inside_another_command_is_named(tmp_path: Path, text: str, program: str) -> None:
    why = f"starts a run inside {program}, where it is not read: give the command that it starts there"
    assert said(run_of(tmp_path, text))[0] == why
    assert said(run_of(tmp_path, f"python3 -m verl.trainer.main_ppo a=1\n{text}")) == [why]


@pytest.mark.parametrize(
    "text",
    [
        "echo 'then python3 -m verl.trainer.main_ppo a=1'\n",
        "pkill -f 'python3 train.py'\n",
        "cat > a.sh <<EOF\npython3 train.py --lr 1\nEOF\n",
        "ssh host 'python3 -m ray start'\n",
    ],
)
def test_a_run_that_is_only_mentioned_is_none(tmp_path: Path, text: str) -> None:
    assert said(run_of(tmp_path, f"{text}python3 -m verl.trainer.main_ppo a=1\n")) == []
