"""A stand-in for verl's client that resumes interrupted generations."""

from __future__ import annotations

from verl.workers.rollout.llm_server import LLMServerClient, TokenOutput, finish


class FullyAsyncLLMServerClient(LLMServerClient):  # type: ignore[misc]  # verl is not installed where this is typed
    async def generate(self, prompt: list[int]) -> TokenOutput:
        final_output = TokenOutput([])
        for _ in range(2):
            output = await super().generate(prompt + final_output.token_ids)
            final_output.token_ids += output.token_ids
            final_output.stop_reason = output.stop_reason

            prompt = prompt[:1]
        return final_output


def make() -> FullyAsyncLLMServerClient:
    return FullyAsyncLLMServerClient(50)


def run(made: FullyAsyncLLMServerClient) -> object:
    output = finish(made.generate([1, 2, 3]))
    return [output.token_ids, output.stop_reason, output.extra_fields]
