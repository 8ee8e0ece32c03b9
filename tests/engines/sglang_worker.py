"""One process of SGLang on the CPU, for test_sglang.py: ``sglang_worker.py SCENARIO FOLDER MODEL PORT RANK WORLD``.

SGLang's own Scheduler decides what runs together, what is cut and what is cached; it is driven by hand, so that every
run makes the same forwards. ``FOLDER/report{RANK}.json`` says which forwards there were and what they computed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 256
OURS = "train_infer_consistency"
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "skip_tokenizer_init": True,
    "disable_cuda_graph": True,
    "max_total_tokens": 1024,
    "random_seed": 1,
}


def prompt(begin: int, length: int) -> list[int]:
    """Return the tokens of a prompt; prompts of other begins share no prefix with it."""
    return [(begin + 7 * number) % VOCABULARY for number in range(length)]


def fitting(call: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those arguments that this release knows."""
    known = inspect.signature(call).parameters
    return call(**{name: value for name, value in arguments.items() if name in known})


def digest(logits: Any) -> str:
    """Return a digest of float32 logits, to compare two processes bit by bit."""
    return hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()


class Engine:
    """One rank of one engine, and the forwards it made."""

    def __init__(self, model: str, port: int, rank: int, world: int) -> None:
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.server_args import PortArgs, ServerArgs, set_global_server_args_for_scheduler

        self.args = ServerArgs(
            model_path=model,
            tp_size=world,
            chunked_prefill_size=64,
            disable_overlap_schedule=True,
            disable_custom_all_reduce=True,
            **SETTINGS,
        )
        set_global_server_args_for_scheduler(self.args)
        ports = PortArgs.init_new(self.args)
        ports.nccl_port = port
        self.rank = rank
        self.forwards: list[dict[str, Any]] = []
        self.scheduler: Any = fitting(
            Scheduler,
            server_args=self.args,
            port_args=ports,
            gpu_id=rank,
            tp_rank=rank,
            moe_ep_rank=0,
            pp_rank=0,
            attn_cp_rank=0,
            moe_dp_rank=0,
            dp_rank=None,
        )
        self.runner: Any = self.scheduler.tp_worker.model_runner

    def ask(self, rid: str, tokens: list[int], new_tokens: int = 1) -> None:
        """Queue a request."""
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True)
        sampling.normalize(None)
        request = TokenizedGenerateReqInput(
            rid=rid,
            input_text="",
            input_ids=tokens,
            mm_inputs=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=[],
            stream=False,
        )
        self.scheduler.handle_generate_request(request)

    def batches(self) -> Iterator[Any]:
        """Yield what the scheduler wants to run, until nothing is left to do; the caller runs it."""
        while (batch := self.scheduler.get_next_batch_to_run()) is not None:
            self.scheduler.cur_batch = batch
            yield batch
            self.scheduler.last_batch = batch
        self.scheduler.last_batch = None

    def forward(self, batch: Any) -> None:
        """Run one batch and note what came out."""
        record = {"mode": batch.forward_mode.name, "rids": [request.rid for request in batch.reqs]}
        result = self.scheduler.run_batch(batch)
        self.scheduler.process_batch_result(batch, result)
        self.forwards.append({**record, "logits": digest(result.logits_output.next_token_logits)})

    def drain(self) -> None:
        """Run all that is queued."""
        for batch in self.batches():
            self.forward(batch)


def one_prompt(engine: Engine) -> None:
    """A single request."""
    engine.ask("only", prompt(1, 20))
    engine.drain()


def all_reasons(engine: Engine) -> None:
    """A forward of each kind the scheduler makes; whole prompts are the first and the last."""
    engine.ask("whole", prompt(1, 20), new_tokens=3)
    engine.drain()
    for rid in ("packed-1", "packed-2"):
        engine.ask(rid, prompt(2 + int(rid[-1]), 10))
    engine.drain()
    engine.ask("long", prompt(5, 100))
    engine.drain()
    engine.ask("again", prompt(1, 20))
    engine.drain()
    # As /health_generate asks for a model without a tokenizer, and as long as a real prompt.
    engine.ask("HEALTH_CHECK_1.0", [0])
    engine.drain()
    engine.ask("short", [9])
    engine.drain()
    failing(engine)
    draft(engine)
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    done, message = engine.scheduler.tp_worker.update_weights_from_disk(
        UpdateWeightFromDiskReqInput(engine.args.model_path, "auto")
    )
    assert done, message
    engine.scheduler.flush_cache()
    engine.ask("last", prompt(8, 30))
    engine.drain()


def failing(engine: Engine) -> None:
    """A whole prompt whose forward raises in the second layer."""

    class PlannedError(Exception):
        pass

    def fail(*_: Any) -> None:
        raise PlannedError

    hook = engine.runner.model.model.layers[1].register_forward_pre_hook(fail)
    engine.ask("failing", prompt(6, 12))
    batch = engine.scheduler.get_next_batch_to_run()
    try:
        engine.scheduler.run_batch(batch)
    except PlannedError:
        engine.forwards.append({"mode": batch.forward_mode.name, "rids": ["failing"], "logits": None})
    hook.remove()
    engine.scheduler.last_batch = None


def draft(engine: Engine) -> None:
    """A whole prompt through the runner of a draft model, then through the target's."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

    target = engine.runner
    second = fitting(
        ModelRunner,
        model_config=target.model_config,
        mem_fraction_static=target.mem_fraction_static,
        gpu_id=target.gpu_id,
        tp_rank=0,
        tp_size=1,
        moe_ep_rank=0,
        moe_ep_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        moe_dp_rank=0,
        nccl_port=0,
        server_args=engine.args,
        is_draft_worker=True,
        req_to_token_pool=target.req_to_token_pool,
        token_to_kv_pool_allocator=target.token_to_kv_pool_allocator,
        memory_pool_config=getattr(target, "memory_pool_config", None),
    )
    engine.ask("drafted", prompt(7, 15))
    for batch in engine.batches():
        output = second.forward(ForwardBatch.init_new(batch.get_model_worker_batch(), second))
        logits = digest(output.logits_output.next_token_logits)
        engine.forwards.append({"mode": batch.forward_mode.name, "rids": ["drafted"], "logits": logits})
        engine.forward(batch)


def long_probe_and_idle(engine: Engine) -> None:
    """A probe that no length gives away, a rank without a request, then two prompts."""
    engine.ask("HEALTH_CHECK_2.0", prompt(9, 20))
    engine.drain()
    idle(engine)
    for begin in (1, 2):
        engine.ask(f"prompt-{begin}", prompt(begin, 20))
        engine.drain()


def idle(engine: Engine) -> None:
    """A rank without a request; SGLang's rotary embedding in plain torch cannot take no tokens, so it is left out."""
    rotary = engine.runner.model.model.layers[0].self_attn.rotary_emb
    rotary.forward = lambda _, query, key, *__, **___: (query, key)
    batch = engine.scheduler.get_idle_batch()
    engine.scheduler.run_batch(batch)
    del rotary.forward
    engine.forwards.append({"mode": batch.forward_mode.name, "rids": [], "logits": None})


def whole_engine(folder: Path, model: str) -> None:
    """Four equal prompts at once through SGLang's own processes, set up as a collection run is."""
    from sglang.srt.entrypoints.engine import Engine as SglangEngine

    settings = {**SETTINGS, "disable_radix_cache": True, "chunked_prefill_size": -1, "max_running_requests": 1}
    engine = SglangEngine(model_path=model, mem_fraction_static=0.5, **settings)
    try:
        sampling = {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}
        outputs = engine.generate(input_ids=[prompt(1, 20)] * 4, sampling_params=sampling)
    finally:
        engine.shutdown()
    report = [{"id": output["meta_info"]["id"], "tokens": output["output_ids"]} for output in outputs]
    (folder / "report0.json").write_text(json.dumps(report))


SCENARIOS = {scenario.__name__: scenario for scenario in (one_prompt, all_reasons, long_probe_and_idle)}


def main(scenario: str, folder: Path, model: str, port: int, rank: int, world: int) -> None:
    """Run a scenario; ``whole_engine`` starts processes of its own, ``without_this_package`` cannot import ours."""
    if scenario == "whole_engine":
        whole_engine(folder, model)
        return
    if scenario == "without_this_package":
        sys.modules[OURS] = None  # type: ignore[assignment]
        scenario = "one_prompt"
    engine = Engine(model, port, rank, world)
    SCENARIOS[scenario](engine)
    report = {
        "forwards": engine.forwards,
        "sglang": sys.modules["sglang"].__file__,
        "imported": sorted({name.partition(".")[0] for name in sys.modules} & {OURS, "msprobe"}),
    }
    (folder / f"report{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], *(int(number) for number in sys.argv[4:]))
