"""Rules of verl's trainer, data and batches: each dumped training forward holds one request's prompt, unpadded."""

from __future__ import annotations

from .. import defaults
from ..rule import ERROR, NOTE, OUT, WARNING, Found, Rule, drop_override, set_override
from ..run import VERL, VERL_HYBRID, Run
from .settings import ACTOR, MODEL, ROLLOUT, count, on, override_must_be, strategy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rule import Answer


def _dynamic(run: Run) -> Answer:
    actor, rollout = ACTOR + "use_dynamic_bsz", ROLLOUT + "log_prob_use_dynamic_bsz"
    given = [key for key in (actor, rollout) if on(defaults.verl(run, key))]
    return Found(run.where(given[0]), *(set_override(key, False) for key in given)) if given else None


def _validation(run: Run) -> Answer:
    key = "trainer.test_freq"
    value = count(run, key)
    return None if value <= 0 else Found(run.where(key), set_override(key, -1), value=value)


def _micro_log_prob(run: Run) -> Answer:
    key, old = ROLLOUT + "log_prob_micro_batch_size_per_gpu", ROLLOUT + "log_prob_micro_batch_size"
    value = defaults.verl(run, key)
    if value == 1:
        return None
    if value is None and on(defaults.verl(run, ACTOR + "use_dynamic_bsz")):
        return OUT
    drops = [drop_override(old)] if defaults.verl(run, old) is not None else []
    return Found(run.where(key, old), set_override(key, 1), *drops, value="null" if value is None else value)


def _micro_update(run: Run) -> Answer:
    key, old = ACTOR + "ppo_micro_batch_size_per_gpu", ACTOR + "ppo_micro_batch_size"
    value = defaults.verl(run, key)
    if value is None and on(defaults.verl(run, ACTOR + "use_dynamic_bsz")):
        return OUT
    if value is None and defaults.verl(run, old) is None:
        return Found(run.where(key, old), set_override(key, 1))
    return None


def _micro_equal(run: Run) -> Answer:
    key = ACTOR + "ppo_micro_batch_size_per_gpu"
    value = defaults.verl(run, key)
    if value is None:
        return OUT
    return None if value == 1 else Found(run.where(key), set_override(key, 1), value=value)


def _cards(run: Run) -> int:
    """The cards whose samples a batch is split over, as verl's own check counts them."""
    cards = count(run, "trainer.nnodes") * count(run, "trainer.n_gpus_per_node")
    if strategy(run) != "megatron":
        return cards
    model = 1
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        model *= count(run, ACTOR + "megatron." + name)
    return cards // model


def _mini_batch(run: Run) -> Answer:
    if on(defaults.verl(run, ACTOR + "use_dynamic_bsz")):
        return OUT
    batch, mini = count(run, "data.train_batch_size"), count(run, ACTOR + "ppo_mini_batch_size")
    key = ACTOR + "ppo_mini_batch_size"
    return None if batch >= mini else Found(run.where(key), set_override(key, batch), batch=batch, mini=mini)


def _divisible(run: Run) -> Answer:
    if on(defaults.verl(run, ACTOR + "use_dynamic_bsz")):
        return OUT
    key = "data.train_batch_size"
    batch, samples, cards = count(run, key), count(run, ROLLOUT + "n"), _cards(run)
    if cards < 1 or batch * samples % cards == 0:
        return None
    whole = (batch // cards + 1) * cards
    return Found(run.where(key), set_override(key, whole), batch=batch, samples=samples, cards=cards)


def _shuffle(run: Run) -> Answer:
    key = "data.shuffle"
    if not on(defaults.verl(run, key)) or defaults.verl(run, "data.seed") is not None:
        return None
    return Found(run.where(key), set_override(key, False))


def _bounded(run: Run) -> Answer:
    key = "trainer.total_training_steps"
    if defaults.verl(run, key) is not None:
        return None
    return Found(
        run.where(key, "trainer.total_epochs"), set_override(key, 1), epochs=defaults.verl(run, "trainer.total_epochs")
    )


def _context(run: Run) -> Answer:
    key = "megatron.context_parallel_size" if strategy(run) == "megatron" else "ulysses_sequence_parallel_size"
    key = ACTOR + key
    value = count(run, key)
    return None if value == 1 else Found(run.where(key), set_override(key, 1), key=key, value=value)


RULES = (
    Rule(
        "V201",
        ERROR,
        VERL,
        override_must_be(MODEL + "use_remove_padding", True),
        fact="verl's engines pad prompts without it, vLLM does not; at b7dabd83 the mask of a prompt-only forward "
        "would be all zeros",
        en="use_remove_padding={value}: training computes padded rows that the rollout does not have",
        zh="use_remove_padding={value}：训练侧会计算推理侧没有的填充行",
        good="actor_rollout_ref.model.use_remove_padding=True",
        bad="actor_rollout_ref.model.use_remove_padding=False",
    ),
    Rule(
        "V202",
        ERROR,
        VERL,
        _dynamic,
        fact="verl packs as many samples as fit into a dynamic micro-batch; a dumped forward must hold one request",
        en="the dynamic batch size packs several requests into one training forward",
        zh="动态 batch 会把多个请求合并到一次训练前向中",
        good="actor_rollout_ref.actor.use_dynamic_bsz=False",
        bad="actor_rollout_ref.actor.use_dynamic_bsz=True",
    ),
    Rule(
        "V203",
        WARNING,
        VERL,
        override_must_be("trainer.val_before_train", False),
        fact="verl 0.8.0 ppo_trainer.yaml: val_before_train is True; validation prompts are dumped too, and have no "
        "training side",
        en="val_before_train={value}: validation prompts are dumped first, and nothing pairs with them",
        zh="val_before_train={value}：会先 dump 验证集 prompt，而它们没有可配对的训练数据",
        good="trainer.val_before_train=False",
        bad="trainer.val_before_train=True",
    ),
    Rule(
        "V204",
        WARNING,
        VERL,
        _validation,
        fact="verl 0.8.0: test_freq > 0 validates during training, and at its end",
        en="test_freq={value}: prompts of the validation are dumped among those of training",
        zh="test_freq={value}：训练期间的验证 prompt 会混入 dump",
        good="trainer.test_freq=-1",
        bad="trainer.test_freq=5",
    ),
    Rule(
        "V205",
        WARNING,
        VERL,
        override_must_be("trainer.balance_batch", False),
        fact="verl 0.8.0 ppo_trainer.yaml: balance_batch is True, in fully async too; it deals the samples to the ranks "
        "anew",
        en="balance_batch={value} deals the samples to the ranks by length, and in another order than the rollout's",
        zh="balance_batch={value} 会按长度把样本重新分配到各 rank，顺序与 rollout 不同",
        good="trainer.balance_batch=False",
        bad="trainer.balance_batch=True",
    ),
    Rule(
        "V206",
        ERROR,
        VERL,
        _micro_log_prob,
        fact="verl 0.8.0 utils/config.py: without a dynamic batch size one of the two log_prob sizes must be set; with "
        "more than 1 several requests are in one dumped forward",
        en="log_prob_micro_batch_size_per_gpu={value}: a dumped training forward must hold one request",
        zh="log_prob_micro_batch_size_per_gpu={value}：被 dump 的训练前向必须只含一个请求",
        good="actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
        bad="actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    ),
    Rule(
        "V207",
        ERROR,
        VERL,
        _micro_update,
        fact="verl 0.8.0 workers/config/actor.py: without a dynamic batch size a micro-batch size must be set",
        en="ppo_micro_batch_size_per_gpu is not set, and verl stops without it",
        zh="没有设置 ppo_micro_batch_size_per_gpu，verl 会因此终止",
        good="actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        bad="actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null",
    ),
    Rule(
        "V208",
        WARNING,
        VERL,
        _micro_equal,
        fact="verl issue 6280: old and new log-probabilities differ where the two micro-batch sizes do; a dumped update "
        "of several requests cannot be compared",
        en="ppo_micro_batch_size_per_gpu={value}: an update's forward holds several requests",
        zh="ppo_micro_batch_size_per_gpu={value}：更新阶段的前向含有多个请求",
        good="actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        bad="actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    ),
    Rule(
        "V209",
        ERROR,
        (VERL_HYBRID,),
        _mini_batch,
        fact="verl 0.8.0 workers/config/actor.py: train_batch_size below ppo_mini_batch_size raises",
        en="train_batch_size={batch} is below ppo_mini_batch_size={mini}, and verl stops",
        zh="train_batch_size={batch} 小于 ppo_mini_batch_size={mini}，verl 会终止",
        good="data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8",
        bad="data.train_batch_size=8",
    ),
    Rule(
        "V210",
        ERROR,
        (VERL_HYBRID,),
        _divisible,
        fact="verl 0.8.0 utils/config.py: train_batch_size x n must be a multiple of the cards, under Megatron of "
        "cards / TP / PP / CP",
        en="train_batch_size={batch} x n={samples} does not divide among {cards} data-parallel cards, and verl stops",
        zh="train_batch_size={batch} × n={samples} 不能被 {cards} 路数据并行整除，verl 会终止",
        good="data.train_batch_size=8 trainer.n_gpus_per_node=4",
        bad="data.train_batch_size=6 trainer.n_gpus_per_node=4",
    ),
    Rule(
        "V218",
        ERROR,
        (VERL_HYBRID,),
        override_must_be("actor_rollout_ref.hybrid_engine", True),
        fact="verl 0.8.0 trainer/ppo/ray_trainer.py asserts hybrid_engine",
        en="main_ppo stops with hybrid_engine={value}",
        zh="hybrid_engine={value} 时 main_ppo 会终止",
        good="actor_rollout_ref.hybrid_engine=True",
        bad="actor_rollout_ref.hybrid_engine=False",
    ),
    Rule(
        "V219",
        NOTE,
        VERL,
        _shuffle,
        fact="verl 0.8.0 legacy_data.yaml: shuffle is True, seed is null",
        en="data.shuffle without data.seed gives every run other prompts",
        zh="data.shuffle 开启而没有 data.seed 时，每次运行的 prompt 都不同",
        good="data.shuffle=False",
        bad="data.shuffle=True",
    ),
    Rule(
        "V220",
        NOTE,
        (VERL_HYBRID,),
        _bounded,
        fact="every step dumps about 0.9 MB a rank for each forward of 48 layers (L0 statistics); verl's default is 30 "
        "epochs",
        en="no total_training_steps: {epochs} epochs are dumped, where one step is enough",
        zh="没有设置 total_training_steps：会采集 {epochs} 个 epoch，而一步已经足够",
        good="trainer.total_training_steps=1",
        bad="trainer.total_epochs=30",
    ),
    Rule(
        "V221",
        WARNING,
        VERL,
        _context,
        fact="each rank then computes a part of the sequence; the comparison reports these as not comparable",
        en="{key}={value} splits a prompt among the ranks, which is not comparable with a whole prefill",
        zh="{key}={value} 会把一条 prompt 切分到多个 rank，无法与完整的 prefill 比对",
        good="actor_rollout_ref.actor.ulysses_sequence_parallel_size=1",
        bad="actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
    ),
)
