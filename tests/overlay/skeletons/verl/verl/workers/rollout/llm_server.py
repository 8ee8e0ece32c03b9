"""A stand-in for verl's client of the inference server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4


@dataclass
class TokenOutput:
    token_ids: list[int]
    stop_reason: str = "completed"
    extra_fields: dict[str, str] = field(default_factory=dict)


class LLMServerClient:
    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.served = 0

    async def generate(self, prompt: list[int]) -> TokenOutput:
        output = await self.ask(
            request_id=uuid4().hex,
            prompt=prompt,
        )
        self.served += 1
        return output

    async def ask(self, request_id: str, prompt: list[int]) -> TokenOutput:
        await asyncio.sleep(0)
        return TokenOutput([(token + len(request_id)) % self.vocabulary for token in prompt])


def finish(coroutine: Coroutine[Any, Any, TokenOutput]) -> TokenOutput:
    """Run to the end without an event loop, which would read the environment."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as done:
            output: TokenOutput = done.value
            return output


def make() -> LLMServerClient:
    return LLMServerClient(100)


def run(made: LLMServerClient) -> object:
    output = finish(made.generate([1, 2, 3]))
    return [output.token_ids, output.stop_reason, output.extra_fields]
