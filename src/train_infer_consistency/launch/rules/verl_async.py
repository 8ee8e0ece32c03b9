"""Rules of verl's fully asynchronous trainer: its own settings, and weights that rollout and training share."""

from __future__ import annotations

from .. import defaults
from ..rule import ERROR, WARNING, Found, Rule, set_override
from ..run import VERL_FULLY_ASYNC, Run
from .settings import ACTOR, on, override_must_be, strategy, switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rule import Answer

_ONLY = (VERL_FULLY_ASYNC,)


def _sharding(run: Run) -> Answer:
    if strategy(run) != "fsdp":
        return None
    bypassed = on(defaults.verl(run, "algorithm.rollout_correction.bypass_mode"))
    if bypassed and not switch(run, "PROMPTS_ONLY"):
        return None
    return Found(run.where(ACTOR + "strategy"), set_override(ACTOR + "strategy", "fsdp2"))


RULES = (
    Rule(
        "V301",
        ERROR,
        _ONLY,
        override_must_be("actor_rollout_ref.hybrid_engine", False),
        fact="verl 0.8.0 fully_async_rollouter.py and fully_async_trainer.py assert it; the default is True",
        en="hybrid_engine={value}: the fully asynchronous trainer stops",
        zh="hybrid_engine={value}：fully async 的 trainer 会终止",
        good="actor_rollout_ref.hybrid_engine=False",
        bad="actor_rollout_ref.hybrid_engine=True",
    ),
    Rule(
        "V302",
        ERROR,
        _ONLY,
        override_must_be("data.train_batch_size", 0),
        fact="verl 0.8.0 fully_async_rollouter.py asserts it; the default is 1024",
        en="train_batch_size={value}: the fully asynchronous rollouter stops unless it is 0",
        zh="train_batch_size={value}：fully async 的 rollouter 要求其为 0，否则终止",
        good="data.train_batch_size=0",
        bad="data.train_batch_size=64",
    ),
    Rule(
        "V303",
        WARNING,
        _ONLY,
        override_must_be("async_training.staleness_threshold", 0),
        fact="verl 0.8.0 fully_async_ppo_trainer.yaml: staleness_threshold is 0.1; a stale sample was generated with "
        "older weights",
        en="staleness_threshold={value}: samples of older weights reach training, and the two sides differ by weights",
        zh="staleness_threshold={value}：旧权重生成的样本会进入训练，两侧权重不同",
        good="async_training.staleness_threshold=0",
        bad="async_training.staleness_threshold=0.5",
    ),
    Rule(
        "V304",
        WARNING,
        _ONLY,
        override_must_be("async_training.trigger_parameter_sync_step", 1),
        fact="verl 0.8.0 fully_async_ppo_trainer.yaml: trigger_parameter_sync_step is 4; between two syncs training has "
        "newer weights than the rollout",
        en="trigger_parameter_sync_step={value}: the rollout keeps its weights over several updates of the actor",
        zh="trigger_parameter_sync_step={value}：actor 多次更新期间 rollout 的权重不变",
        good="async_training.trigger_parameter_sync_step=1",
        bad="async_training.trigger_parameter_sync_step=4",
    ),
    Rule(
        "V305",
        WARNING,
        _ONLY,
        override_must_be("async_training.partial_rollout", False),
        fact="verl 0.8.0 fully_async_rollouter.py: an interrupted request goes on with a new id, whose prefill holds "
        "prompt and response; the default is True",
        en="partial_rollout={value}: an interrupted request is prefilled again together with its response",
        zh="partial_rollout={value}：被中断的请求会连同已生成的 response 重新 prefill",
        good="async_training.partial_rollout=False",
        bad="async_training.partial_rollout=True",
    ),
    Rule(
        "V306",
        ERROR,
        _ONLY,
        _sharding,
        fact="verl 0.8.0 FullyAsyncTrainer._compute_old_log_prob keeps the weights by save_model_to_cpu, which raises where "
        "there are no DTensors; it is run with bypass_mode off, and by the added pass of PROMPTS_ONLY",
        en="the log_prob forward switches weights, which needs FSDP2, and the strategy is fsdp",
        zh="log_prob 前向会切换权重，只支持 FSDP2，而 strategy 为 fsdp",
        good="actor_rollout_ref.actor.strategy=fsdp2 algorithm.rollout_correction.bypass_mode=False",
        bad="actor_rollout_ref.actor.strategy=fsdp algorithm.rollout_correction.bypass_mode=False",
    ),
    Rule(
        "V307",
        ERROR,
        _ONLY,
        override_must_be("data.gen_batch_size", 1),
        fact="verl 0.8.0 fully_async_rollouter.py asserts it",
        en="gen_batch_size={value}: the fully asynchronous rollouter stops unless it is 1",
        zh="gen_batch_size={value}：fully async 的 rollouter 要求其为 1，否则终止",
        good="data.gen_batch_size=1",
        bad="data.gen_batch_size=8",
    ),
)
