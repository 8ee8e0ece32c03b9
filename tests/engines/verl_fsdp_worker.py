"""verl's own trainer over its own workers in one process a rank, for the tests of its engines: ``... PLAN.json``.

Real: RayPPOTrainer.fit, ActorRolloutRefWorker, TrainingWorker, the engines, Hydra's configuration. Stand-ins: the
rollout (tokens and request ids are drawn here), Ray's worker group (a call is a call), the weight sync, the metrics'
logger.

The plan has ``model`` (a folder), ``report`` (the file to write) and ``scenarios``: each has a ``name``, ``overrides``
for Hydra, ``steps``, and ``fails`` where its first micro-batch shall raise and the training be begun anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

#: Tokens of each prompt and each response: both sides of verl's padding occur, and no two samples are alike.
PROMPTS, RESPONSES = (5, 8), (3, 6, 1, 4)
#: And of the greedy answer to each prompt, which ReMax asks for beside them.
GREEDY = (2, 5)
PROMPT_WIDTH, RESPONSE_WIDTH = 9, 7


def digest(*values: Any) -> str:
    """A digest of tensors bit by bit, and of anything else by its text."""
    whole = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            local = value.to_local() if hasattr(value, "to_local") else value
            whole.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes())
            whole.update(str(local.shape).encode())
        else:
            whole.update(str(value).encode())
    return whole.hexdigest()


def batch_digest(batch: Any) -> str:
    """A digest of everything in a DataProto."""
    tensors = [part for name in sorted(batch.batch.keys()) for part in (name, batch.batch[name])]
    others = [(name, list(values)) for name, values in sorted(batch.non_tensor_batch.items())]
    return digest(*tensors, others, sorted(batch.meta_info.items()))


def random_digest() -> str:
    """A digest of the state of all generators."""
    return digest(torch.get_rng_state(), random.getstate(), np.random.get_state())


def weights_digest(*networks: Any) -> str:
    """A digest of all parameters of networks, or of lists of their chunks."""
    return digest(*(part for network in networks for item in parameters(network) for part in item))


def parameters(network: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of a network, or of a list of its chunks."""
    for chunk in network if isinstance(network, list) else [network]:
        yield from chunk.named_parameters()


def keep_weights(network: Any, path: Path) -> None:
    """Write this rank's part of all parameters, for tests that compare values."""
    parts = [value.to_local() if hasattr(value, "to_local") else value for _, value in parameters(network)]
    torch.save([part.detach().clone() for part in parts], path)


class Rollout:
    """Draws prompts and responses in place of an inference engine, with the request ids an engine would give."""

    def __init__(self, config: Any, steps: int, scenario: int) -> None:
        self._generator = torch.Generator().manual_seed(11)
        self._vocabulary, self._steps = 200, steps
        self._log_probs = config.actor_rollout_ref.rollout.calculate_log_probs
        #: What a reward function that gives several rewards calls each of them.
        self._rewards = list(config.algorithm.get("gdpo_reward_keys") or ())
        self._scenario, self._number = scenario, 0
        #: The number of the weights it has, as a rollout server knows it.
        self.version: int | None = None
        #: The prompt that each request id stands for; those of greedy answers are not trained on.
        self.asked: dict[str, list[int]] = {}

    def prompts(self) -> Iterator[dict[str, Any]]:
        """Yield what verl's dataset yields for each training step."""
        for step in range(self._steps):
            raw = np.empty(len(PROMPTS), dtype=object)
            raw[:] = [self._tokens(length) for length in PROMPTS]
            yield {
                "dummy": torch.full((len(PROMPTS), 1), step),
                "raw_prompt_ids": raw,
                "data_source": np.array(["test"] * len(PROMPTS), dtype=object),
            }

    def generate_sequences(self, batch: Any) -> Any:
        """What AgentLoopManager.generate_sequences gives back."""
        from verl import DataProto

        rows: dict[str, list[torch.Tensor]] = {name: [] for name in ("prompts", "responses", "prompt_mask", "mask")}
        prompts = batch.non_tensor_batch["raw_prompt_ids"]
        lengths = RESPONSES if len(prompts) == len(RESPONSES) else RESPONSES + GREEDY
        for prompt, length in zip(prompts, lengths, strict=True):
            left, right = PROMPT_WIDTH - len(prompt), RESPONSE_WIDTH - length
            rows["prompts"].append(torch.tensor([0] * left + prompt))
            rows["responses"].append(torch.tensor(self._tokens(length) + [0] * right))
            rows["prompt_mask"].append(torch.tensor([0] * left + [1] * len(prompt)))
            rows["mask"].append(torch.tensor([1] * length + [0] * right))
        table = {name: torch.stack(values) for name, values in rows.items()}
        mask = torch.cat([table["prompt_mask"], table["mask"]], dim=1)
        tensors = {
            "prompts": table["prompts"],
            "responses": table["responses"],
            "input_ids": torch.cat([table["prompts"], table["responses"]], dim=1),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0),
            "response_mask": table["mask"],
            "rm_scores": torch.rand(table["mask"].shape, generator=self._generator) * table["mask"],
        }
        if self._log_probs:
            tensors["rollout_log_probs"] = -5.0 * torch.rand(table["mask"].shape, generator=self._generator)
        # 32 hexadecimal digits, as verl's uuid4; the first four tell the scenario.
        ids = [f"{self._scenario:04x}{self._number + index:028x}" for index in range(len(prompts))]
        self._number += len(ids)
        sampled = batch.non_tensor_batch.get("__do_sample__", [True] * len(ids))
        self.asked |= {key: prompt for key, prompt, kept in zip(ids, prompts, sampled, strict=True) if kept}
        rewards = {name: torch.rand(len(ids), generator=self._generator).numpy() for name in self._rewards}
        return DataProto.from_dict(
            tensors=tensors,
            non_tensors={
                "request_id": np.array(ids, dtype=object),
                "global_steps": np.array([self.version] * len(ids), dtype=object),
                "min_global_steps": np.array([None] * len(ids), dtype=object),
                "max_global_steps": np.array([None] * len(ids), dtype=object),
                "multi_modal_inputs": np.array([{} for _ in ids], dtype=object),
                "__num_turns__": np.array([2] * len(ids), dtype=np.int32),
                **rewards,
            },
            meta_info={"timing": {}, "reward_extra_keys": self._rewards},
        )

    def update_weights(self, global_steps: int) -> None:
        """What verl's checkpoint manager tells the rollout's servers."""
        self.version = global_steps

    def _tokens(self, length: int) -> list[int]:
        drawn: list[int] = torch.randint(1, self._vocabulary, (length,), generator=self._generator).tolist()
        return drawn


class Now:
    """A worker group in which every rank drives its own worker, and all get the answer of the ranks that have one.

    What does not block in Ray is wrapped as Ray wraps it. With data parallel ranks each gets its part of the batch, as
    verl's dispatch cuts it.
    """

    def __init__(self, worker: Any, deferred: bool = False, parts: int = 1) -> None:
        self._worker, self._deferred, self._parts = worker, deferred, parts

    def __getattr__(self, name: str) -> Any:
        if name == "async_calls_finalize_fn_exec":
            raise AttributeError(name)
        method = getattr(self._worker, name)

        def call(*args: Any) -> Any:
            tools: Any = importlib.import_module("verl.utils.tensordict_utils")
            if self._parts > 1:
                rank = torch.distributed.get_rank()
                args = tuple(tools.chunk_tensordict(batch, self._parts)[rank] for batch in args)
            answers = [method(*args)]
            if torch.distributed.get_world_size() > 1:
                own, answers = answers[0], [None] * torch.distributed.get_world_size()
                torch.distributed.all_gather_object(answers, own)
            answers = [answer for answer in answers if answer is not None]
            if not answers:
                return None
            assert len(answers) == self._parts
            answer = answers[0] if self._parts == 1 else tools.concat_tensordict(answers)
            return SimpleNamespace(get=lambda: answer) if self._deferred else answer

        return call


class Scenario:
    """One configuration: its workers, its trainer, and what came of it."""

    def __init__(self, model: str, overrides: list[str], steps: int, number: int) -> None:
        hydra: Any = importlib.import_module("hydra")
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            self.config = hydra.compose("ppo_trainer", [f"actor_rollout_ref.model.path={model}", *overrides])
        torch.manual_seed(5)
        self.rollout = Rollout(self.config, steps, number)
        self.trainer: Any = self._trainer(steps)

    def _trainer(self, steps: int) -> Any:
        ray_trainer: Any = importlib.import_module("verl.trainer.ppo.ray_trainer")
        workers: Any = importlib.import_module("verl.workers.engine_workers")
        config, rollout = self.config, self.rollout

        class Trainer(ray_trainer.RayPPOTrainer):  # type: ignore[misc]
            def _create_dataloader(self, *args: Any) -> None:
                self.train_dataset = None
                self.train_dataloader = list(rollout.prompts())
                self.total_training_steps = steps

        roles = {ray_trainer.Role.ActorRollout: workers.ActorRolloutRefWorker}
        trainer: Any = Trainer(
            config, None, roles, resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: 1), device_name="cpu"
        )
        trainer.async_rollout_manager = rollout
        # The rollout stands beside the trainer: only the weights' number is sent to it.
        trainer.checkpoint_manager = SimpleNamespace(update_weights=rollout.update_weights, sleep_replicas=lambda: None)
        self.workers = [workers.ActorRolloutRefWorker(config.actor_rollout_ref, "actor")]
        self.workers[0].init_model()
        is_sharded = config.actor_rollout_ref.actor.strategy.startswith("fsdp")
        parts = torch.distributed.get_world_size() if is_sharded else 1
        trainer.actor_rollout_wg = Now(self.workers[0], parts=parts)
        if trainer.use_reference_policy and not trainer.ref_in_actor:
            self.workers.append(workers.ActorRolloutRefWorker(config.actor_rollout_ref, "ref"))
            self.workers[-1].init_model()
            trainer.ref_policy_wg = Now(self.workers[-1])
        if trainer.use_critic:
            trainer.critic_wg = Now(self._critic(workers), deferred=True)
        return trainer

    def _critic(self, workers: Any) -> Any:
        losses: Any = importlib.import_module("verl.workers.utils.losses")
        config = importlib.import_module("verl.utils.config").omega_conf_to_dataclass(self.config.critic)
        config.engine.infer_max_token_len_per_gpu = config.ppo_infer_max_token_len_per_gpu
        config.engine.max_token_len_per_gpu = config.ppo_max_token_len_per_gpu
        config.engine.infer_micro_batch_size_per_gpu = config.ppo_micro_batch_size_per_gpu
        config.engine.micro_batch_size_per_gpu = config.ppo_micro_batch_size_per_gpu
        worker = workers.TrainingWorker(
            workers.TrainingWorkerConfig(
                model_type="value_model",
                model_config=config.model,
                engine_config=config.engine,
                optimizer_config=config.optim,
                checkpoint_config=config.checkpoint,
            )
        )
        worker.reset()
        worker.set_loss_fn(partial(losses.value_loss, config=config))
        self.workers.append(worker)
        return worker

    def networks(self) -> list[Any]:
        """The actor's network, then the critic's or the reference model's."""
        engines = [getattr(worker, "actor", None) or getattr(worker, "ref", None) or worker for worker in self.workers]
        return [worker.engine.module for worker in engines]


class Logger:
    """Keeps the metrics that fit() reports; timings and throughput belong to the clock, not to the training."""

    rows: list[dict[str, Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log(self, data: dict[str, Any], step: int) -> None:
        """Keep one step's."""
        Logger.rows.append({"step": step, **{name: _plain(value) for name, value in data.items() if _kept(name)}})


def _kept(name: str) -> bool:
    return not name.startswith(("timing", "perf/")) and "/perf/" not in name


def _plain(value: Any) -> Any:
    return repr(float(value)) if isinstance(value, int | float | np.number) else str(value)


def watch_passes(passes: list[dict[str, Any]]) -> None:
    """Note the training batch and all generators before and after each added pass."""
    capture = sys.modules.get("train_infer_consistency.capture.verl")
    if capture is None:
        return
    original = capture.prompt_only_pass

    def prompt_only_pass(trainer: Any, batch: Any) -> None:
        before = [batch_digest(batch), random_digest(), weights_digest(trainer.model)]
        original(trainer, batch)
        after = [batch_digest(batch), random_digest(), weights_digest(trainer.model)]
        passes.append({"before": before, "after": after})

    capture.prompt_only_pass = prompt_only_pass  # type: ignore[attr-defined]


@contextlib.contextmanager
def failing(engine: Any, fails: bool) -> Iterator[None]:
    """Let the engine's first micro-batch raise behind the network's forward, which leaves FSDP able to go on."""
    original = engine.prepare_model_outputs

    def refuse(*args: Any, **kwargs: Any) -> None:
        engine.prepare_model_outputs = original
        raise ArithmeticError("made to fail")

    if fails:
        engine.prepare_model_outputs = refuse
    try:
        yield
    finally:
        engine.prepare_model_outputs = original


def run(plan: dict[str, Any], number: int, passes: list[dict[str, Any]]) -> dict[str, Any]:
    """Train through one scenario."""
    Logger.rows = []
    passes.clear()
    scenario = plan["scenarios"][number]
    made = Scenario(plan["model"], scenario["overrides"], scenario["steps"], number)
    actor, *others = made.networks()
    made.trainer.model = actor
    result: dict[str, Any] = {"before": weights_digest(actor), "error": None}
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    with failing(made.workers[0].actor.engine, scenario["fails"]):
        try:
            made.trainer.fit()
        except ArithmeticError as error:
            result["error"] = str(error)
            made.trainer.fit()
    keep_weights(actor, Path(plan["report"].format(rank=os.environ["RANK"])).with_name(f"weights{number}.pt"))
    result |= {"after": weights_digest(actor), "others": weights_digest(*others), "random": random_digest()}
    return result | {"metrics": Logger.rows, "passes": list(passes), "asked": made.rollout.asked}


def plain(model: str, asked: dict[str, list[int]]) -> dict[str, Any]:
    """What transformers alone computes for each prompt: statistics of the last norm's output and of the logits."""
    transformers: Any = importlib.import_module("transformers")
    network = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval()
    result = {}
    for request_id, prompt in asked.items():
        with torch.no_grad():
            normed = network.model(input_ids=torch.tensor([prompt])).last_hidden_state
            outputs = {"norm": normed, "logits": network.lm_head(normed)}
        result[request_id] = {
            name: {"Max": value.max().item(), "Min": value.min().item(), "Norm": value.norm().item()}
            for name, value in outputs.items()
        }
    return result


def run_scenarios(
    plan: dict[str, Any], trainer: str, train: Callable[[dict[str, Any], int, list[dict[str, Any]]], dict[str, Any]]
) -> dict[str, Any]:
    """Train through each scenario of a plan with the trainer of that module; one that fails leaves its traceback."""
    torch.set_num_threads(1)
    tracking: Any = importlib.import_module("verl.utils.tracking")
    tracking.Tracking = Logger
    importlib.import_module(trainer)
    passes: list[dict[str, Any]] = []
    watch_passes(passes)
    report: dict[str, Any] = {}
    for number, scenario in enumerate(plan["scenarios"]):
        try:
            report[scenario["name"]] = train(plan, number, passes)
        except Exception:
            report[scenario["name"]] = {"traceback": traceback.format_exc()}
    return report


def main(path: Path) -> None:
    """Run all scenarios of a plan, and write the report."""
    plan = json.loads(path.read_text())
    report: dict[str, Any] = {"scenarios": run_scenarios(plan, "verl.trainer.ppo.ray_trainer", run)}
    modules = ("train_infer_consistency", "msprobe", "verl")
    report["modules"] = {name: getattr(sys.modules.get(name), "__file__", None) for name in modules}
    asked = next(iter(report["scenarios"].values())).get("asked", {})
    report["plain"] = plain(plan["model"], asked)
    Path(plan["report"].format(rank=os.environ["RANK"])).write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
