"""A stand-in for slime's training actor."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

TIMED: list[str] = []


@contextmanager
def timer(name: str) -> Iterator[None]:
    TIMED.append(name)
    yield


def monkey_patch_torch_dist() -> None:
    TIMED.append("patched")


def get_data_iterator(args: Namespace, rollout_data: list[int]) -> tuple[Iterator[int], int]:
    return iter(rollout_data), len(rollout_data) * args.scale


class MegatronTrainRayActor:
    args: Namespace

    def init(self, args: Namespace, role: str) -> int:
        monkey_patch_torch_dist()

        self.args = args
        return len(role)

    def train_actor(self, rollout_id: int, rollout_data: list[int]) -> int:
        data_iterator, num_microbatches = get_data_iterator(self.args, rollout_data)
        return self.compute_log_prob(list(data_iterator), store_prefix="old_") + num_microbatches + rollout_id

    def compute_log_prob(self, data: list[int], store_prefix: str = "") -> int:
        with timer(f"{store_prefix}log_probs"):
            return sum(data)


def make() -> MegatronTrainRayActor:
    actor = MegatronTrainRayActor()
    actor.init(Namespace(scale=2), "actor")
    return actor


def run(made: MegatronTrainRayActor) -> object:
    return [made.train_actor(1, [1, 2, 3]), made.compute_log_prob([4]), TIMED]


def switch_on() -> object:
    return make()
