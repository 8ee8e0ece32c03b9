"""Drives a real vLLM engine through a list of orders, for test_vllm_ascend.py: ``vllm_ascend_worker.py FOLDER``.

``FOLDER/job.json`` has ``engine`` (arguments of vLLM's LLM) and ``orders``; ``FOLDER/report.json`` says what came out.
With ``failures`` in the job the engine is built once for each of them, each in a fork of this process, and must not
come up.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def watch(worker: Any) -> None:
    """Note every forward of the model itself in a rank, by what its runner was told to compute."""
    runner = getattr(worker, "model_runner", worker)
    runner.seen_forwards, state = [], {"tokens": None, "fail": False}
    runner.seen_state = state
    execute, forward, dummy = runner.execute_model, runner._model_forward, runner._dummy_run

    def executed(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        state["tokens"] = scheduler_output.total_num_scheduled_tokens
        try:
            return execute(scheduler_output, *args, **kwargs)
        finally:
            state["tokens"] = None

    def forwarded(*args: Any, **kwargs: Any) -> Any:
        if state["tokens"] is not None:
            runner.seen_forwards.append(state["tokens"])
            if state["fail"]:
                state["fail"] = False
                forward(*args, **kwargs)
                raise ArithmeticError("a forward that fails, on purpose")
        return forward(*args, **kwargs)

    def dummied(*args: Any, **kwargs: Any) -> Any:
        runner.seen_forwards.append(kwargs.get("num_tokens", *args))
        return dummy(*args, **kwargs)

    runner.execute_model, runner._model_forward, runner._dummy_run = executed, forwarded, dummied


def seen(worker: Any) -> dict[str, Any]:
    """Report one rank."""
    runner = worker.model_runner
    debugger = getattr(runner, "debugger", None)
    return {
        "pid": os.getpid(),
        "rank": worker.rank,
        "forwards": runner.seen_forwards,
        "runner": f"{type(runner).__module__}.{type(runner).__qualname__}",
        "runner_file": sys.modules[type(runner).__module__].__file__,
        "debugger": None if debugger is None else f"{type(debugger).__module__}.{type(debugger).__qualname__}",
        "attention": sorted({type(layer.impl).__module__ for layer in attention_layers(runner)}),
        "capture": sorted(name for name in sys.modules if name.partition(".")[0] == "train_infer_consistency"),
        "msprobe": "msprobe" in sys.modules,
    }


def attention_layers(runner: Any) -> list[Any]:
    """Return the layers that hold an attention implementation."""
    return [layer for layer in runner.compilation_config.static_forward_context.values() if hasattr(layer, "impl")]


def fail_next(worker: Any) -> None:
    """Let the next forward of a rank raise after it has computed."""
    worker.model_runner.seen_state["fail"] = True


def load_again(worker: Any) -> None:
    """Load some of the model's own weights once more, as a weight sync does."""
    model = worker.model_runner.model
    model.load_weights([("model.norm.weight", model.state_dict()["model.norm.weight"].clone())])


class Driver:
    """An engine and the orders it takes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        vllm: Any = importlib.import_module("vllm")
        self.llm = vllm.LLM(**settings)
        self.engine = self.llm.llm_engine
        self.pooling = settings.get("runner") == "pooling"
        self.sampling, self.pooled = vllm.SamplingParams, vllm.PoolingParams
        self.tokens: dict[str, list[int]] = {}
        self.errors: list[str] = []
        self.llm.collective_rpc(watch)

    def add(self, name: str, prompt: list[int], tokens: int = 1) -> None:
        """Queue a request."""
        given = {"prompt_token_ids": prompt}
        settings = self.sampling(temperature=0, max_tokens=tokens, ignore_eos=True)
        self.engine.add_request(name, given, self.pooled(task="embed") if self.pooling else settings)

    def step(self, times: int = 1) -> None:
        """Run single steps."""
        for _ in range(times):
            for output in self.engine.step():
                if output.finished:
                    self.tokens[output.request_id] = [] if self.pooling else list(output.outputs[0].token_ids)

    def drain(self) -> None:
        """Run until nothing is left."""
        while self.engine.has_unfinished_requests():
            self.step()

    def fail(self) -> None:
        """Run one step whose forward fails; the engine goes on as after a caught exception of a worker."""
        self.llm.collective_rpc(fail_next)
        try:
            self.step()
        except ArithmeticError as error:
            self.errors.append(str(error))
        self.engine.abort_request(list(self.engine.output_processor.request_states), internal=True)

    def dummy(self) -> None:
        """Run what an idle data-parallel rank runs."""
        self.llm.collective_rpc("execute_dummy_batch")

    def reload(self) -> None:
        """Load weights."""
        self.llm.collective_rpc(load_again)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Carry out a job's orders."""
    driver = Driver(job["engine"])
    for order, *arguments in job["orders"]:
        getattr(driver, order)(*arguments)
    ranks = driver.llm.collective_rpc(seen)
    return {"tokens": driver.tokens, "errors": driver.errors, "ranks": ranks}


def fail_to_start(failure: dict[str, Any], settings: dict[str, Any], report: Path) -> None:
    """Build an engine that must not come up, and write down what it says."""
    sys.path[:0] = failure.get("path", [])
    os.environ.update(failure.get("environment", {}))
    for name in failure.get("missing", []):
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        importlib.import_module("vllm").LLM(**{**settings, **failure["engine"]})
        text = "it came up"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    report.write_text(json.dumps({"error": text}))


def main(folder: Path) -> None:
    """See the module."""
    job = json.loads((folder / "job.json").read_text())
    if "failures" not in job:
        (folder / "report.json").write_text(json.dumps(run(job)))
        return
    for name in job["preload"]:
        importlib.import_module(name)
    errors = {}
    for name, failure in job["failures"].items():
        child = os.fork()
        if child == 0:
            fail_to_start(failure, job["engine"], folder / f"{name}.json")
            os._exit(0)
        os.waitpid(child, 0)
        errors[name] = json.loads((folder / f"{name}.json").read_text())["error"]
    (folder / "report.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
