"""A scheduler for vLLM that keeps one request open until a weight sync interrupts it.

vLLM loads it by name (``scheduler_cls=verl_cpu.held.HeldScheduler``); which requests it waits for is in vLLM's
``additional_config``. Without it, what a sync interrupts depends on how fast either side is. With it, the order of
events is always the same: all requests are there before the first is worked on; they are, prompt by prompt; once the
trainer has the answers that it waits for, the next request stands still after its first token, with the others behind
it; and the sync, which the trainer begins when it has trained on these answers, interrupts them all.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState


class HeldScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's own scheduler, which pauses itself twice.

    ``additional_config["held"]`` has ``requests``, how many come at once; ``answers``, how many to each prompt; and
    ``prompts``, how many prompts the trainer takes for a step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plan: dict[str, int] = self.vllm_config.additional_config["held"]
        self._arrived, self._answered = 0, Counter[tuple[int, ...]]()
        self._was_held = False

    def add_request(self, request: Any) -> None:
        """Let nothing begin before all are there."""
        super().add_request(request)
        self._arrived += 1
        if self._arrived < self._plan["requests"]:
            self.set_pause_state(PauseState.PAUSED_ALL)
        elif self._arrived == self._plan["requests"]:
            # One prompt's answers after the other's, whatever order they came in.
            every = sorted(self.waiting, key=lambda other: other.prompt_token_ids)
            self.waiting.remove_requests(every)
            for other in every:
                self.waiting.add_request(other)
            self.set_pause_state(PauseState.UNPAUSED)

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """Stop once the trainer has enough, and the request after that its first token."""
        before = list(self.running)
        outputs = super().update_from_output(*args, **kwargs)
        if not self._was_held:
            self._answered.update(tuple(request.prompt_token_ids) for request in before if request.is_finished())
            whole = sum(count == self._plan["answers"] for count in self._answered.values())
            if whole >= self._plan["prompts"] and any(request.num_output_tokens for request in self.running):
                self._was_held = True
                self.set_pause_state(PauseState.PAUSED_ALL)
        return outputs
