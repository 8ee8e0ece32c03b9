"""Rules of verl's rollout: what its engine must be told so that a dumped prefill is one whole prompt."""

from __future__ import annotations

from .. import defaults
from ..rule import ERROR, NOTE, OUT, WARNING, Found, Mend, NotChecked, Rule, drop_override, set_override
from ..run import VERL, Run
from .settings import ACTOR, ROLLOUT, count, on, override_must_be, strategy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..rule import Answer

ADDITIONAL = ROLLOUT + "engine_kwargs.vllm.additional_config"
DUMP_CONFIG = ADDITIONAL + ".dump_config_path"
_KWARGS = ROLLOUT + "engine_kwargs.vllm."
_ENGINES = ("vllm",)
#: 0.8.0's switch, and those that 0.9.0 has in its place.
_SKIPS = (ROLLOUT + "skip.enable", "skip.rollout.enable", "skip.async_rollout.enable", "skip.rollout_tq.enable")
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


def _engine(run: Run, name: str) -> tuple[str, Any]:
    """An engine setting and the key that has the last word on it: engine_kwargs overrides rollout's own."""
    key = _KWARGS + name
    if key in run.hydra and run.override(key) is not None:
        return key, run.override(key)
    return ROLLOUT + name, defaults.verl(run, ROLLOUT + name)


def _set(key: str, value: object) -> Mend:
    return set_override(("+" if key.startswith(_KWARGS) else "") + key, value)


def _must_be(run: Run, name: str, wanted: Any) -> Answer:
    key, value = _engine(run, name)
    if value == wanted or (isinstance(wanted, bool) and not isinstance(value, bool) and on(value) is wanted):
        return None
    return Found(run.where(key), _set(key, wanted), value=value)


def _eager(run: Run) -> Answer:
    return _must_be(run, "enforce_eager", True)


def _prefix_caching(run: Run) -> Answer:
    return _must_be(run, "enable_prefix_caching", False)


def _sequences(run: Run) -> Answer:
    return _must_be(run, "max_num_seqs", 1)


def _dump_config(run: Run) -> Answer:
    if DUMP_CONFIG not in run.hydra:
        whole = defaults.verl(run, ADDITIONAL)
        if isinstance(whole, str):
            return NotChecked(f"{ADDITIONAL} is a text, {whole}", f"{ADDITIONAL} 是一段文本：{whole}")
    if run.override(DUMP_CONFIG):
        return None
    path = "/path/to/config_generate.json"
    if isinstance(run.override(ADDITIONAL), dict):
        return Found(run.where(ADDITIONAL), set_override("+" + DUMP_CONFIG, path))
    return Found(run.where(ADDITIONAL), set_override("+" + ADDITIONAL, "{dump_config_path:" + path + "}"))


def _absolute(run: Run) -> Answer:
    path = run.override(DUMP_CONFIG)
    if not path:
        return OUT
    if str(path).startswith("/"):
        return None
    name = str(path).rpartition("/")[2]
    return Found(run.where(DUMP_CONFIG), set_override("+" + DUMP_CONFIG, f"/path/to/{name}"), path=path)


def _prompt_length(run: Run) -> tuple[str, int]:
    key = ROLLOUT + "prompt_length"
    key = key if key in run.hydra else "data.max_prompt_length"
    return key, count(run, key)


def _chunks(run: Run) -> Answer:
    if not on(_engine(run, "enable_chunked_prefill")[1]):
        return None
    key, tokens = _engine(run, "max_num_batched_tokens")
    length = _prompt_length(run)[1]
    if isinstance(tokens, int) and tokens >= length:
        return None
    return Found(run.where(key), _set(key, length), tokens=tokens, length=length)


def _model_length(run: Run) -> Answer:
    if on(_engine(run, "enable_chunked_prefill")[1]):
        return OUT
    key, tokens = _engine(run, "max_num_batched_tokens")
    _, length = _engine(run, "max_model_len")
    if length is None:
        return NotChecked(
            f"without chunked prefill {key} ({tokens}) must reach the model's own length, since max_model_len is not set",
            f"关闭 chunked prefill 时，{key}（{tokens}）须不小于模型自身的最大长度，因为没有设置 max_model_len",
            target=True,
        )
    if not isinstance(length, int) or not isinstance(tokens, int) or tokens >= length:
        return None
    return Found(run.where(key), _set(key, length), tokens=tokens, length=length)


def _name(run: Run) -> Answer:
    key = ROLLOUT + "name"
    name = defaults.verl(run, key)
    if name is None:
        return OUT
    return None if name in _ENGINES else Found(run.where(key), set_override(key, "vllm"), name=name)


def _dtype(run: Run) -> Answer:
    kind = strategy(run)
    if kind not in ("fsdp", "fsdp2", "megatron"):
        return OUT
    # Under FSDP the parameters' type in a forward is mixed_precision's, whatever the engine's own dtype says.
    train = ACTOR + ("megatron.dtype" if kind == "megatron" else "fsdp_config.mixed_precision.param_dtype")
    training = str(defaults.verl(run, train) or "bfloat16")
    key, rollout = _engine(run, "dtype")
    if str(rollout) == "auto":
        return NotChecked("rollout.dtype=auto is the model's own", "rollout.dtype=auto 取模型自身的类型", target=True)
    if _DTYPES.get(training, training) == _DTYPES.get(str(rollout), str(rollout)):
        return None
    origin = run.where(train if train in run.hydra else key)
    return Found(origin, _set(key, "bfloat16"), rollout=rollout, training=training)


def _skip(run: Run) -> Answer:
    given = [key for key in _SKIPS if on(defaults.verl(run, key))]
    return Found(run.where(given[0]), set_override(given[0], False), key=given[0]) if given else None


def _quantized(run: Run) -> Answer:
    key, value = _engine(run, "quantization")
    return None if value in (None, "") else Found(run.where(key), drop_override(key), value=value)


RULES = (
    Rule(
        "V101",
        ERROR,
        VERL,
        _eager,
        fact="vllm-ascend 0.18.0 worker/model_runner_v1.py: with dump_config_path, a runner that is not eager raises; "
        "verl 0.8.0 rollout.yaml: enforce_eager is False",
        en="the rollout runs in graph mode (enforce_eager={value}), and its runner refuses a dump there",
        zh="rollout 以图模式运行（enforce_eager={value}），其 runner 在此模式下拒绝 dump",
        good="actor_rollout_ref.rollout.enforce_eager=True",
        bad="actor_rollout_ref.rollout.enforce_eager=False",
    ),
    Rule(
        "V102",
        ERROR,
        VERL,
        _dump_config,
        fact="vllm-ascend 0.13.0 to 0.18.0 ascend_config.py: a dump is on only where additional_config names "
        "dump_config_path",
        en="the rollout's additional_config names no dump_config_path, so its side dumps nothing",
        zh="rollout 的 additional_config 没有给出 dump_config_path，推理侧不会 dump 任何数据",
        good="'+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config={dump_config_path:/d/config_generate.json}'",
        bad="actor_rollout_ref.rollout.enforce_eager=True",
    ),
    Rule(
        "V103",
        WARNING,
        VERL,
        _absolute,
        fact="vLLM's workers run under Ray, whose working directory is not the script's",
        en="dump_config_path={path} is relative, and the workers have another working directory",
        zh="dump_config_path={path} 是相对路径，而工作进程的工作目录与此不同",
        good="'+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config={dump_config_path:/d/config_generate.json}'",
        bad="'+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config={dump_config_path:config_generate.json}'",
    ),
    Rule(
        "V104",
        ERROR,
        VERL,
        _prefix_caching,
        fact="verl 0.8.0 rollout.yaml: enable_prefix_caching is True; a prompt that shares its beginning with an earlier "
        "one (rollout.n > 1, a system prompt) has only its tail computed",
        en="prefix caching is on (enable_prefix_caching={value}): prompts that begin alike are prefilled in part only",
        zh="前缀缓存已开启（enable_prefix_caching={value}）：开头相同的 prompt 只会计算其余部分",
        good="actor_rollout_ref.rollout.enable_prefix_caching=False",
        bad="actor_rollout_ref.rollout.enable_prefix_caching=True",
    ),
    Rule(
        "V105",
        ERROR,
        VERL,
        _chunks,
        fact="vLLM 0.18.0: with chunked prefill a prompt longer than max_num_batched_tokens is computed in several steps",
        en="with chunked prefill and max_num_batched_tokens={tokens}, a prompt of up to {length} tokens comes in pieces",
        zh="chunked prefill 开启且 max_num_batched_tokens={tokens} 时，最长 {length} 个 token 的 prompt 会被分块计算",
        good="data.max_prompt_length=8192",
        bad="data.max_prompt_length=16384",
    ),
    Rule(
        "V106",
        ERROR,
        VERL,
        _model_length,
        fact="vLLM 0.18.0 config/scheduler.py: without chunked prefill, max_num_batched_tokens below max_model_len raises",
        en="without chunked prefill vLLM refuses max_num_batched_tokens={tokens} below max_model_len={length}",
        zh="关闭 chunked prefill 时，vLLM 拒绝 max_num_batched_tokens={tokens} 小于 max_model_len={length}",
        good="actor_rollout_ref.rollout.enable_chunked_prefill=False actor_rollout_ref.rollout.max_model_len=4096",
        bad="actor_rollout_ref.rollout.enable_chunked_prefill=False actor_rollout_ref.rollout.max_model_len=32768",
    ),
    Rule(
        "V107",
        WARNING,
        VERL,
        _sequences,
        fact="measured with vLLM 0.18: of four prompts sent at once one was prefilled alone, three in one step; only a "
        "prefill of one request can be compared",
        en="max_num_seqs={value}: several prompts are packed into one prefill, which cannot be compared",
        zh="max_num_seqs={value}：多条 prompt 会合并到一次 prefill 中，无法比对",
        good="actor_rollout_ref.rollout.max_num_seqs=1",
        bad="actor_rollout_ref.rollout.max_num_seqs=256",
    ),
    Rule(
        "V108",
        ERROR,
        VERL,
        _name,
        fact="the capture of a verl rollout is in vLLM's and vllm-ascend's model runners",
        en="the rollout engine is {name}: a verl rollout is dumped with vLLM only",
        zh="rollout 引擎为 {name}：verl 的 rollout 只能在 vLLM 上采集",
        good="actor_rollout_ref.rollout.name=vllm",
        bad="actor_rollout_ref.rollout.name=sglang",
    ),
    Rule(
        "V109",
        ERROR,
        VERL,
        _skip,
        fact="verl 0.8.0 rollout.skip and 0.9.0 skip.* replay stored rollouts: no prefill is run, and the ids are an earlier "
        "run's",
        en="{key} replays stored rollouts, so that the rollout computes and dumps nothing",
        zh="{key} 会重放已保存的 rollout，推理侧不计算也不 dump",
        good="actor_rollout_ref.rollout.skip.enable=False",
        bad="actor_rollout_ref.rollout.skip.enable=True",
    ),
    Rule(
        "V110",
        ERROR,
        VERL,
        _dtype,
        fact="verl 0.8.0 engine/fsdp: parameters are of mixed_precision.param_dtype, by default bfloat16; "
        "rollout.dtype is bfloat16",
        en="the rollout computes in {rollout}, training in {training}: everything would differ",
        zh="rollout 以 {rollout} 计算，训练以 {training} 计算：所有数据都会不同",
        good="actor_rollout_ref.rollout.dtype=bfloat16",
        bad="actor_rollout_ref.rollout.dtype=float16",
    ),
    Rule(
        "V111",
        WARNING,
        VERL,
        _quantized,
        fact="verl 0.8.0 rollout.quantization quantizes the weights that the rollout gets, the actor's stay as they are",
        en="the rollout's weights are quantized ({value}), training's are not",
        zh="rollout 的权重被量化（{value}），训练侧没有",
        good="actor_rollout_ref.rollout.quantization=null",
        bad="actor_rollout_ref.rollout.quantization=fp8",
    ),
    Rule(
        "V112",
        NOTE,
        VERL,
        override_must_be(ROLLOUT + "multi_turn.enable", False),
        fact="verl 0.8.0 tool_agent_loop: only the first turn's request id reaches training",
        en="in a rollout of several turns only the first turn's prompt can be paired",
        zh="多轮 rollout 中只有第一轮的 prompt 可以配对",
        good="actor_rollout_ref.rollout.multi_turn.enable=False",
        bad="actor_rollout_ref.rollout.multi_turn.enable=True",
    ),
)
