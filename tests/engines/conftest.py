"""What several of the engine tests share, made once for all of them."""

from __future__ import annotations

import pytest

from demo.loops import LOOPS
from demo.run_loop import LoopDemo


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> LoopDemo:
    """The woven wheels of stack verl-0.8 as pip installs them, vLLM's files, and the model of the demos."""
    demo = LoopDemo(tmp_path_factory.mktemp("base"), LOOPS["loop"])
    demo.install()
    demo.make_model()
    return demo
